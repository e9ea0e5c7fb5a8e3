"""Tool calls: in whatever form an upstream sends them, a client gets each once, in order, with an id of ours."""

import json
import re
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import assume, given
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

CHARS_MAX = 40  # OpenAI refuses longer ids
USUAL_IDS = {
    "OpenAI": "call_Zz0f4QmbS7Xw1RkT9aYh2LcD",
    "SGLang": "call_9f8e7d6c5b4a39281706f5e4",
    "vLLM": "chatcmpl-tool-0123456789abcdef0123456789abcdef",
    "llama.cpp": "zK3vT9qLm2XwB7cRfY5sJ8dHgN4pA6uE",
    "Mistral": "aB3dE6gH9",
    "Anthropic": "toolu_01A09q90qw90lq917835lq9",
    "Bedrock": "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q",
    "Gemini": "function-call-9223372036854775807",
    "Kimi": "functions.get_weather:0",
    "DeepSeek": "call_00_Zz0f4QmbS7Xw1RkT9aYh2LcD",
    "Ollama": "call_x8kq2m4z",
    "a UUID": "call_123e4567-e89b-12d3-a456-426614174000",
    "a number": "0",
    "leading zeros": "call_aaaa0000",
}


class ModelCall(msgspec.Struct, frozen=True):
    """A call that the model made. It has no arguments if the text is empty."""

    name: str
    arguments: str
    id: str


class PartStyle(msgspec.Struct, frozen=True):
    """How an upstream marks the parts of its calls, in forms that leave no doubt about which call a part belongs to."""

    indexes: str  # "own", "zero" or "none"
    ids: str  # on the "first" part, on "all", or "none"
    names: str  # "whole", "split" or "repeated"

    @property
    def is_interleaved(self) -> bool:
        """Whether parts of several calls may alternate, because each names its call."""
        return self.indexes == "own" or self.ids == "all"


STYLES = [
    PartStyle(indexes, ids, names)
    for indexes in ("own", "zero", "none")
    for ids in ("first", "all", "none")
    for names in ("whole", "split", "repeated")
    if indexes == "own" or ids != "none"
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
    """The text, cut anywhere, also into empty pieces or not at all."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def parts_of(draw: st.DrawFn, style: PartStyle, index: int, call: ModelCall) -> list[ToolCallPart]:
    arguments = pieces(draw, call.arguments)
    named = [call.name] * len(arguments) if style.names == "repeated" else [call.name] + [""] * (len(arguments) - 1)
    if style.names == "split":
        cut = draw(st.integers(1, len(call.name) - 1))
        assume(call.name[:cut] != call.name[cut:])  # two equal halves look like a repeated name
        named = [call.name[:cut], call.name[cut:]] + [""] * (len(arguments) - 1)
        arguments = ["", *arguments]
    shown = {"own": index, "zero": 0, "none": None}[style.indexes]
    ids = {"all": [call.id] * len(named), "first": [call.id] + [""] * (len(named) - 1), "none": [""] * len(named)}
    return [ToolCallPart(shown, *fields) for fields in zip(ids[style.ids], named, arguments, strict=True)]


@st.composite
def replies(draw: st.DrawFn) -> tuple[list[ModelCall], list[list[ToolCallPart]]]:
    """Calls in the order of their first parts, and the parts of each read from the upstream."""
    style = draw(st.sampled_from(STYLES))
    ids = draw(st.lists(st.text("abcXYZ019_-", min_size=1, max_size=12), unique=True, min_size=1, max_size=4))
    indexes = draw(st.permutations(range(len(ids))))
    queues = []
    for index, upstream_id in zip(indexes, ids, strict=True):
        call = ModelCall(draw(names), draw(st.just("") | arguments_texts), upstream_id if style.ids != "none" else "")
        queues.append((call, parts_of(draw, style, index, call)))
    begun, sent = list[ModelCall](), list[ToolCallPart]()
    while waiting := [queue for queue in queues if queue[1]]:
        call, parts = waiting[draw(st.integers(0, len(waiting) - 1)) if style.is_interleaved else 0]
        begun += [] if any(call is one for one in begun) else [call]
        sent.append(parts.pop(0))
    reads = draw(st.integers(1, 3))
    return begun, [sent[start : start + reads] for start in range(0, len(sent), reads)]


def normalize(reads: Sequence[Sequence[ToolCallPart]]) -> list[ToolCallDelta]:
    normalizer = ToolCallNormalizer()
    return [delta for read in reads for delta in normalizer.take(read)] + normalizer.finish()


def join(deltas: list[ToolCallDelta]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call, joined as a client would."""
    calls: dict[int, tuple[str, str, str]] = {}
    for delta in deltas:
        if delta.index in calls:
            call_id, name, arguments = calls[delta.index]
            calls[delta.index] = (call_id, name, arguments + delta.arguments)
        else:
            calls[delta.index] = (delta.id, delta.name, delta.arguments)
    assert list(calls) == list(range(len(calls)))
    return list(calls.values())


def upstream_id_in(call_id: str) -> str:
    """The upstream's id inside one of ours; empty if it has none."""
    return "" if unwrap_id(call_id) == call_id else unwrap_id(call_id)


@pytest.mark.parametrize("arguments", ['{"a":"}"}', '{"a":"\\"}"}', '{"a":["\\\\"],"b":{}}', "[1,[2]]"])
def test_a_repeated_name_begins_a_call_only_behind_complete_arguments(arguments: str) -> None:
    """Without ids and indexes, a part with the same name belongs to the call until its JSON is complete."""
    for cut in range(1, len(arguments)):
        parts = [ToolCallPart(name="look", arguments=text) for text in (arguments[:cut], arguments[cut:], "{}")]
        assert [called for _, _, called in join(normalize([[part] for part in parts]))] == [arguments, "{}"]


def test_a_part_of_a_call_that_has_begun_does_not_begin_the_next() -> None:
    """A second call whose arguments have not come yet waits, while the first one goes on."""
    first, second = (ToolCallPart(index, f"id_{index}", "look", "") for index in (0, 1))
    more = [ToolCallPart(index, arguments=text) for index, text in ((0, "{"), (0, "}"), (1, "{}"))]
    found = join(normalize([[first], [more[0]], [second], [more[1]], [more[2]]]))
    assert [arguments for _, _, arguments in found] == ["{}", "{}"]


@given(replies())
def test_calls_do_not_depend_on_how_their_parts_are_sent(
    reply: tuple[list[ModelCall], list[list[ToolCallPart]]],
) -> None:
    """However the parts are cut, numbered and interleaved, the same calls come out in the same order."""
    begun, reads = reply
    calls = join(normalize(reads))
    assert [(name, arguments) for _, name, arguments in calls] == [(one.name, one.arguments or "{}") for one in begun]
    assert [upstream_id_in(call_id) for call_id, _, _ in calls] == [one.id for one in begun]


def test_extra_content_stays_with_its_call() -> None:
    """Data that an upstream wants back is sent once, with the delta of its call in which it arrived."""
    first = ToolCallPart(0, "a", "look", "{", extra_content={"x": 1})
    later = ToolCallPart(1, "b", "look", "{}")
    late = ToolCallPart(1, extra_content={"y": 2})
    deltas = normalize([[first], [ToolCallPart(0, arguments="}")], [later], [late]])
    assert [(delta.index, delta.extra_content) for delta in deltas] == [
        (0, {"x": 1}),
        (0, None),
        (1, None),
        (1, {"y": 2}),
    ]
    assert [call["extra_content"] for call in assemble_calls(deltas)] == [{"x": 1}, {"y": 2}]


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("upstream_id", ["", "same"])
@pytest.mark.parametrize("is_one_read", [True, False])
def test_whole_calls_with_one_index_are_separate_calls(index: int | None, upstream_id: str, is_one_read: bool) -> None:
    """Calls that are sent whole with the same index, and without ids or with the same id, stay separate."""
    arguments = ['{"at":"}{"}', "{}", '{"at":"\\"]"}']
    parts = [ToolCallPart(index, upstream_id, "look", text) for text in arguments]
    calls = join(normalize([parts] if is_one_read else [[part] for part in parts]))
    assert [(name, text) for _, name, text in calls] == [("look", text) for text in arguments]
    assert len({call_id for call_id, _, _ in calls}) == len(arguments)


def test_an_id_that_an_upstream_gave_twice_is_used_once() -> None:
    """Only the first of two calls with the same upstream id contains it."""
    first, second = join(normalize([[ToolCallPart(0, "x", "look", "{}"), ToolCallPart(0, "x", "look", "{}")]]))
    assert (upstream_id_in(first[0]), upstream_id_in(second[0])) == ("x", "")


def test_a_call_waits_for_the_calls_before_it() -> None:
    """Calls begin in order: one that has arguments waits for an earlier one that has none yet."""
    normalizer = ToolCallNormalizer()
    assert normalizer.take([ToolCallPart(0, "x", "idle"), ToolCallPart(1, "y", "look", '{"a":1}')]) == []
    calls = join(normalizer.finish())
    assert [(name, arguments) for _, name, arguments in calls] == [("idle", "{}"), ("look", '{"a":1}')]


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
def test_any_parts_give_valid_deltas(reads: list[list[ToolCallPart]]) -> None:
    """Even senseless parts lose no arguments, and their deltas have the documented form."""
    deltas = normalize(reads)
    calls = join(deltas)
    assert all(OURS.fullmatch(call_id) for call_id, _, _ in calls)
    assert len({call_id for call_id, _, _ in calls}) == len(calls)
    assert sum(bool(delta.id) for delta in deltas) == len(calls)
    sent_chars = sum(len(part.arguments) for read in reads for part in read)
    assert (
        sum(len(text) for _, _, text in calls if text != "{}") <= sent_chars <= sum(len(text) for _, _, text in calls)
    )


@pytest.mark.parametrize("upstream_id", ["", *USUAL_IDS.values()], ids=["none", *USUAL_IDS])
def test_ids_of_usual_upstreams_stay_short(upstream_id: str) -> None:
    """They fit into the 40 characters that OpenAI allows, hide the upstream's id, and give it back."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert len(ours) <= CHARS_MAX
    assert unwrap_id(ours) == (upstream_id or ours)
    rest = upstream_id.removeprefix("call_")
    assert len(rest) < 4 or rest not in ours


@pytest.mark.parametrize("upstream_id", ["", "x" * (UPSTREAM_ID_CHARS_MAX + 1)])
def test_an_id_of_ours_without_an_upstream_id_is_unchanged(upstream_id: str) -> None:
    """A missing or overlong upstream id is not wrapped: the upstream then gets our id back."""
    ours = wrap_id(upstream_id)
    assert OURS.fullmatch(ours)
    assert len(ours) < 64
    assert unwrap_id(ours) == ours


@given(st.text("abc019", min_size=1, max_size=12), st.integers(0), st.sampled_from("abc019"))
def test_a_damaged_id_counts_as_foreign(upstream_id: str, place: int, other: str) -> None:
    """An id of ours with one changed character is not unwrapped to another upstream id."""
    ours = wrap_id(upstream_id)
    place = len("call_") + place % (len(ours) - len("call_"))
    damaged = ours[:place] + other + ours[place + 1 :]
    assert unwrap_id(damaged) in (damaged, upstream_id)


def test_ids_are_unique() -> None:
    """No two calls get the same id, also if the upstream gave them none, or counts them anew in each reply."""
    for upstream_id in ("", "0", "call_1", "functions.look:0"):
        assert len({wrap_id(upstream_id) for _ in range(1000)}) == 1000
