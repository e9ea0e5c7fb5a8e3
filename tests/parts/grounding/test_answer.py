"""Answers lose the tags of our own fences, wherever a stream is split, and nothing else."""

import time
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.grounding import Source
from cadenza.gateway.relay import pass_through
from cadenza.parts.grounding.answer import FencedAnswer, TagRemover
from cadenza.parts.grounding.material import fence

SOURCE_FENCE = fence("source", "It rains in Bergen.", number="1", title="Rain", url="https://a.example/?a=1")
NOTES_FENCE = fence("notes", "- I live in Oslo.")
FENCED, NOTES = SOURCE_FENCE.text, NOTES_FENCE.text
IDS = [SOURCE_FENCE.id, NOTES_FENCE.id]
END = f"</reference {IDS[0]}>"
OTHER = "</reference 0123456789abcdef>"
SOURCE = Source("https://a.example/?a=1", "Rain", "It rains in Bergen.")


def removed(*pieces: str) -> str:
    remover = TagRemover(IDS)
    return "".join([*map(remover.take, pieces), remover.end()])


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (f"It rains in Bergen.\n{END}", "It rains in Bergen."),
        (f"{FENCED} So it rains.", "\nIt rains in Bergen. So it rains."),
        (NOTES, "\n- I live in Oslo."),
        (f"a{END}{END}b", "ab"),
        (f"It rains.\n{END[:-1]}", "It rains."),
        (f"It rains.{FENCED.partition(' kind=')[0]} kind", "It rains."),
    ],
)
def test_tags_of_the_request_are_removed(answer: str, left: str) -> None:
    """With the line break before them, also where the answer ends inside one; what stands between two tags stays."""
    assert removed(answer) == left


@pytest.mark.parametrize(
    "answer",
    [
        OTHER,
        f"{OTHER} a",
        OTHER[:-1],
        "<reference>",
        END[:-2],
        END[:14],
        "a < b",
        "<",
        "1 </",
        f"</reference {IDS[0]}\n>",
    ],
)
def test_other_text_stays(answer: str) -> None:
    """What only looks like a tag, or is only the beginning of one, reaches the client."""
    assert removed(answer) == answer
    assert removed(*answer) == answer


@given(
    st.lists(
        st.sampled_from([END, OTHER, FENCED.partition("\n")[0], END[:9], END[9:], "<", "a", ">", " ", "\n"]), max_size=8
    ),
    st.data(),
)
def test_where_a_stream_is_split_makes_no_difference(parts: list[str], data: st.DataObject) -> None:
    """Any pieces give the same answer as the whole."""
    answer = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[start:end] for start, end in zip([0, *places], [*places, len(answer)], strict=True)]
    assert removed(*pieces) == removed(answer)


@pytest.mark.slow(reason="tries every split of a text")
@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (f"a\n{END}b", "ab"),
        (f"a\n\n{END}\nb", "a\n\nb"),
        (f"\n{END}\n{END}\n", "\n"),
        (f"a\n{OTHER}\n", f"a\n{OTHER}\n"),
        (f"</ref\n{END}erence {IDS[0]}>", END),
        (f"a\n</reference {IDS[0]} {'x' * 5000}>b", f"a\n</reference {IDS[0]} {'x' * 5000}>b"),
    ],
    ids=["one", "empty line", "two", "other", "inside another", "too long"],
)
def test_every_split_in_two_or_three_gives_the_same_answer(answer: str, left: str) -> None:
    """The line break before a tag goes wherever the stream is split; what becomes a tag by a removal stays."""
    assert removed(answer) == removed(*answer) == left
    places = range(0, len(answer) + 1, 1 + len(answer) // 100)
    for first, second in combinations_with_replacement(places, 2):
        assert removed(answer[:first], answer[first:second], answer[second:]) == left


def test_a_line_break_waits_for_what_follows() -> None:
    """It is sent with the next piece, or at the end."""
    remover = TagRemover(IDS)
    assert [remover.take(piece) for piece in ("a\n", "b\n\n", "\n", "c\n")] == ["a", "\nb\n", "\n", "\nc"]
    assert remover.end() == "\n"


def test_text_is_sent_as_soon_as_it_cannot_be_a_tag() -> None:
    """Only what may become a tag of this request waits for the next piece."""
    remover = TagRemover(IDS)
    assert [remover.take(piece) for piece in ("a <", "b", " </ref", "erence x", "<reference 0")] == [
        "a ",
        "<b",
        " ",
        "</reference x",
        "<reference 0" if not any(id_.startswith("0") for id_ in IDS) else "",
    ]


async def test_citations_are_places_in_the_answer_without_tags() -> None:
    """The positions fit what the client gets, streamed or whole."""
    answer = f"{END}It rains [1]."
    stream, whole = FencedAnswer(IDS, [SOURCE]), FencedAnswer(IDS, [SOURCE])
    sent = stream.take(answer) + stream.end()
    assert sent == await pass_through(whole, answer) == "It rains [1]."
    assert stream.annotations() == whole.annotations()
    cited = whole.annotations()[0]["url_citation"]
    assert sent[cited["start_index"] : cited["end_index"]] == "[1]"


def test_an_answer_of_tags_holds_nobody_up() -> None:
    """A large piece of nothing but beginnings of tags takes milliseconds of CPU, not seconds."""
    began_s = time.process_time()
    removed("</reference " * 16_000)
    removed(*(END[:20] for _ in range(10_000)))
    assert time.process_time() - began_s < 2
