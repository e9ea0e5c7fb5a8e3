"""Tool calls: whatever an upstream makes of them, a client gets each once, in order, under an id that comes back."""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cadenza.core.chat import assemble_calls
from cadenza.core.tool_calls import (
    UPSTREAM_ID_CHARS_MAX,
    ToolCallDelta,
    ToolCallNormalizer,
    ToolCallPart,
    unwrap_id,
    wrap_id,
)

OURS = re.compile(r"call_[A-Za-z0-9_-]{24,}")
AWKWARD = ['"', "\\", "{", "}", "[", "]", "\\\\", '\\"', '{"', '"}', "\n", "é", "🎼", "\u2028", ":", ","]


class Made(msgspec.Struct, frozen=True):
    """A call that the model made. Without arguments where the text is empty."""

    name: str
    arguments: str
    id: str


class Way(msgspec.Struct, frozen=True):
    """How an upstream tells its calls apart, in ways that can be told apart."""

    labels: str  # "own", "zero" or "none"
    ids: str  # on the "first" part, on "all", or "none"
    names: str  # "whole", "split" or "repeated"

    @property
    def is_mixed(self) -> bool:
        """Whether parts of several calls may come in turns: each says whose it is."""
        return self.labels == "own" or self.ids == "all"


WAYS = [
    Way(labels, ids, names)
    for labels in ("own", "zero", "none")
    for ids in ("first", "all", "none")
    for names in ("whole", "split", "repeated")
    if labels == "own" or ids != "none"
]

texts = st.lists(st.sampled_from(AWKWARD) | st.text(max_size=3), max_size=4).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments_texts = st.builds(
    lambda value, is_ascii, indent: json.dumps(value, ensure_ascii=is_ascii, indent=indent),
    st.dictionaries(texts, values, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1]),
)
names = st.from_regex(r"[A-Za-z0-9_-]{2,10}", fullmatch=True)


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text, cut anywhere: empty pieces and one whole piece included."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def parts_of(draw: st.DrawFn, way: Way, label: int, made: Made) -> list[ToolCallPart]:
    arguments = pieces(draw, made.arguments)
    named = [made.name] * len(arguments) if way.names == "repeated" else [made.name] + [""] * (len(arguments) - 1)
    if way.names == "split":
        cut = draw(st.integers(1, len(made.name) - 1))
        assume(made.name[:cut] != made.name[cut:])  # a name said twice is the same name
        named = [made.name[:cut], made.name[cut:]] + [""] * (len(arguments) - 1)
        arguments = ["", *arguments]
    index = {"own": label, "zero": 0, "none": None}[way.labels]
    ids = {"all": [made.id] * len(named), "first": [made.id] + [""] * (len(named) - 1), "none": [""] * len(named)}
    return [ToolCallPart(index, *fields) for fields in zip(ids[way.ids], named, arguments, strict=True)]


@st.composite
def replies(draw: st.DrawFn) -> tuple[list[Made], list[list[ToolCallPart]]]:
    """Calls in the order of their first parts, and the reads in which an upstream sent them."""
    way = draw(st.sampled_from(WAYS))
    ids = draw(st.lists(st.text("abcXYZ019_-", min_size=1, max_size=12), unique=True, min_size=1, max_size=4))
    labels = draw(st.permutations(range(len(ids))))
    queues = []
    for label, upstream_id in zip(labels, ids, strict=True):
        made = Made(draw(names), draw(st.just("") | arguments_texts), upstream_id if way.ids != "none" else "")
        queues.append((made, parts_of(draw, way, label, made)))
    told, sent = list[Made](), list[ToolCallPart]()
    while waiting := [queue for queue in queues if queue[1]]:
        made, parts = waiting[draw(st.integers(0, len(waiting) - 1)) if way.is_mixed else 0]
        told += [] if any(made is one for one in told) else [made]
        sent.append(parts.pop(0))
    reads = draw(st.integers(1, 3))
    return told, [sent[start : start + reads] for start in range(0, len(sent), reads)]


def mend(reads: Sequence[Sequence[ToolCallPart]]) -> list[ToolCallDelta]:
    normalizer = ToolCallNormalizer()
    return [delta for read in reads for delta in normalizer.take(read)] + normalizer.finish()


def together(deltas: list[ToolCallDelta]) -> list[tuple[str, str, str]]:
    """Upstream id, name and arguments of each call, put together as a client would."""
    calls: dict[int, tuple[str, str, str]] = {}
    for delta in deltas:
        if delta.index in calls:
            call_id, name, arguments = calls[delta.index]
            calls[delta.index] = (call_id, name, arguments + delta.arguments)
        else:
            calls[delta.index] = (delta.id, delta.name, delta.arguments)
    assert list(calls) == list(range(len(calls)))
    return list(calls.values())


def carried(call_id: str) -> str:
    """The upstream's id inside one of ours; nothing where it carries none."""
    return "" if unwrap_id(call_id) == call_id else unwrap_id(call_id)


@settings(max_examples=400, deadline=None)
@given(replies())
def test_any_fragmentation_is_the_same_calls(reply: tuple[list[Made], list[list[ToolCallPart]]]) -> None:
    """However the parts of calls are cut, labelled and mixed, the same calls come out in the same order."""
    told, reads = reply
    calls = together(mend(reads))
    assert [(name, arguments) for _, name, arguments in calls] == [(one.name, one.arguments or "{}") for one in told]
    assert [carried(call_id) for call_id, _, _ in calls] == [one.id for one in told]


@settings(max_examples=200, deadline=None)
@given(replies())
def test_id_and_name_come_once_and_first(reply: tuple[list[Made], list[list[ToolCallPart]]]) -> None:
    """Calls are numbered from 0 as they begin; id and name stand on the first delta of each and on no other."""
    told, reads = reply
    deltas = mend(reads)
    firsts = [delta for delta in deltas if delta.id or delta.name]
    assert [delta.index for delta in firsts] == list(range(len(told)))
    assert all(OURS.fullmatch(delta.id) and delta.name for delta in firsts)
    assert len({delta.id for delta in firsts}) == len(firsts)
    for first in firsts:
        assert next(delta for delta in deltas if delta.index == first.index) is first
    assert all(delta.arguments for delta in deltas)


@settings(max_examples=100, deadline=None)
@given(replies())
def test_whole_calls_are_the_sum_of_their_deltas(reply: tuple[list[Made], list[list[ToolCallPart]]]) -> None:
    """A non-streaming reply holds the very calls that a stream would have told."""
    deltas = mend(reply[1])
    whole = [(call.id, call.function.name, call.function.arguments) for call in assemble_calls(deltas)]
    assert whole == together(deltas)
    assert {call.type for call in assemble_calls(deltas)} == {"function"}


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("upstream_id", ["", "same"])
@pytest.mark.parametrize("is_one_read", [True, False])
def test_whole_calls_under_one_label_are_told_apart(index: int | None, upstream_id: str, is_one_read: bool) -> None:
    """Calls sent whole under one label, without ids or with the same one, are calls of their own."""
    arguments = ['{"at":"}{"}', "{}", '{"at":"\\"]"}']
    parts = [ToolCallPart(index, upstream_id, "look", text) for text in arguments]
    calls = together(mend([parts] if is_one_read else [[part] for part in parts]))
    assert [(name, text) for _, name, text in calls] == [("look", text) for text in arguments]
    assert len({call_id for call_id, _, _ in calls}) == len(arguments)


def test_an_id_given_twice_comes_back_once() -> None:
    """Of two calls that an upstream gave one id, the first carries it; an id is never told of two calls."""
    first, second = together(mend([[ToolCallPart(0, "x", "look", "{}"), ToolCallPart(0, "x", "look", "{}")]]))
    assert (carried(first[0]), carried(second[0])) == ("x", "")


def test_an_id_may_come_late() -> None:
    """An id that stands on a later part, but before the arguments, is still carried."""
    ((call_id, name, arguments),) = together(
        mend([[ToolCallPart(0, "", "look")], [ToolCallPart(0, "x")], [ToolCallPart(0, "", "", "{}")]])
    )
    assert (carried(call_id), name, arguments) == ("x", "look", "{}")


def test_arguments_are_sent_on_as_they_come() -> None:
    """A call is announced with its first arguments, and each further piece leaves at once."""
    normalizer = ToolCallNormalizer()
    assert normalizer.take([ToolCallPart(0, "x", "look")]) == []
    (first,) = normalizer.take([ToolCallPart(0, arguments='{"a"')])
    assert (first.index, first.name, first.arguments) == (0, "look", '{"a"')
    assert normalizer.take([ToolCallPart(0, arguments=":1}")]) == [ToolCallDelta(0, ":1}")]
    assert normalizer.finish() == []


def test_a_call_waits_for_those_before_it() -> None:
    """Calls are announced in order: one that has arguments waits behind one that has none yet."""
    normalizer = ToolCallNormalizer()
    assert normalizer.take([ToolCallPart(0, "x", "idle"), ToolCallPart(1, "y", "look", '{"a":1}')]) == []
    calls = together(normalizer.finish())
    assert [(name, arguments) for _, name, arguments in calls] == [("idle", "{}"), ("look", '{"a":1}')]


@pytest.mark.parametrize("is_named_again", [True, False])
@pytest.mark.parametrize("upstream_id", ["x", ""])
def test_space_after_the_arguments_begins_no_call(upstream_id: str, is_named_again: bool) -> None:
    """White space behind whole arguments belongs to them, be the name repeated beside it or not."""
    parts = [
        ToolCallPart(0, upstream_id, "look", '{"a":1}'),
        ToolCallPart(0, upstream_id, "look" * is_named_again, "\n"),
    ]
    ((_, name, arguments),) = together(mend([parts]))
    assert (name, json.loads(arguments)) == ("look", {"a": 1})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.lists(
            st.builds(
                ToolCallPart,
                st.none() | st.integers(-2, 3),
                st.sampled_from(["", "x", "y", "é"]),
                st.sampled_from(["", "look", "lo"]),
                st.text('{}[]"\\a', max_size=4),
            ),
            max_size=3,
        ),
        max_size=6,
    )
)
def test_any_parts_make_sound_deltas(reads: list[list[ToolCallPart]]) -> None:
    """Parts that make no sense lose no argument, and their deltas have the one form all the same."""
    deltas = mend(reads)
    calls = together(deltas)
    assert all(OURS.fullmatch(call_id) for call_id, _, _ in calls)
    assert len({call_id for call_id, _, _ in calls}) == len(calls)
    assert sum(bool(delta.id) for delta in deltas) == len(calls)
    said = sum(len(part.arguments) for read in reads for part in read)
    assert sum(len(text) for _, _, text in calls if text != "{}") <= said <= sum(len(text) for _, _, text in calls)


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=UPSTREAM_ID_CHARS_MAX))
def test_an_upstream_id_comes_back_out_of_ours(upstream_id: str) -> None:
    """What is wrapped is unwrapped, whatever the upstream's id is made of, and ours shows nothing of it."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert unwrap_id(ours) == upstream_id
    assert wrap_id(upstream_id) != ours


@pytest.mark.parametrize("upstream_id", ["", "x" * (UPSTREAM_ID_CHARS_MAX + 1)])
def test_an_id_that_carries_none_stays_as_it_is(upstream_id: str) -> None:
    """No id, or one of absurd length, is not carried: the echo of ours is then what the upstream gets."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert len(ours) < 64
    assert unwrap_id(ours) == ours


def test_an_id_of_ours_may_be_an_upstream_id() -> None:
    """Where the upstream is a service like this one, its id comes back whole, not what it carries."""
    theirs = wrap_id("inner")
    assert unwrap_id(wrap_id(theirs)) == theirs


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text("abcXYZ019_-=+/é", max_size=60).map("call_{}".format))
def test_foreign_ids_are_left_alone(foreign: str) -> None:
    """An id that was not made here is what the upstream gets, whatever its text."""
    assert unwrap_id(foreign) == foreign


@settings(max_examples=100, deadline=None)
@given(st.text("abc019", min_size=1, max_size=12), st.integers(0), st.sampled_from("abc019"))
def test_a_damaged_id_is_a_foreign_one(upstream_id: str, place: int, other: str) -> None:
    """An id of ours with one character changed is not taken for ours, unless it means the same."""
    ours = wrap_id(upstream_id)
    place = len("call_") + place % (len(ours) - len("call_"))
    damaged = ours[:place] + other + ours[place + 1 :]
    assert unwrap_id(damaged) in (damaged, upstream_id)


def test_ids_differ() -> None:
    """No two calls get one id, though the upstream gave them none."""
    assert len({wrap_id("") for _ in range(1000)}) == 1000


def test_deltas_need_no_json() -> None:
    """Arguments that are no JSON are passed on as they are: the client's parser is the judge."""
    ((_, _, arguments),) = together(
        mend([[ToolCallPart(0, "x", "look", "city=Oslo")], [ToolCallPart(0, "", "", " now")]])
    )
    assert arguments == "city=Oslo now"


def test_no_parts_are_no_calls() -> None:
    """A reply without calls has none."""
    no_parts: list[Any] = []
    assert mend([no_parts, no_parts]) == []
