"""Which sources an answer cites."""

import asyncio
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.grounding.answer import CitationFinder, find_citations
from cadenza.grounding.search.records import Source

SOURCES = [Source(f"https://source-{number}.example/", f"Source {number}") for number in range(1, 5)]
ODD_TEXT = st.text(st.sampled_from("[]【】`\n 1239-–,;^†ax_.(é今"), max_size=60)


def annotations_of(pieces: Iterable[str], sources: list[Source] = SOURCES) -> list[dict[str, Any]]:
    finder = CitationFinder()
    for piece in pieces:
        finder.take(piece)
    return finder.annotations(sources)


def cited(text: str) -> list[tuple[int, str]]:
    """The number of each cited source, with the text of its marker."""
    citations = [annotation["url_citation"] for annotation in annotations_of([text])]
    numbers = {source.url: number for number, source in enumerate(SOURCES, 1)}
    return [(numbers[item["url"]], text[item["start_index"] : item["end_index"]]) for item in citations]


UNCITED = [(1, ""), (2, ""), (3, ""), (4, "")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The sky is blue [1].", [(1, "[1]")]),
        ("The sky is blue[1].", [(1, "[1]")]),
        ("In 2025[1] and in example.com[2]", [(1, "[1]"), (2, "[2]")]),
        ("On the iPhone[1], macOS[2]", [(1, "[1]"), (2, "[2]")]),
        ("天空是蓝色的[1]。", [(1, "[1]")]),
        ("Two [1][2] in a row", [(1, "[1]"), (2, "[2]")]),
        ("Two [2, 1] in one", [(2, "[2, 1]"), (1, "[2, 1]")]),
        ("Two [1; 1] alike", [(1, "[1; 1]")]),
        ("A range [1-3]", [(1, "[1-3]"), (2, "[1-3]"), (3, "[1-3]")]),
        ("A range [3–9]", [(3, "[3–9]"), (4, "[3–9]")]),
        ("Wide【2】brackets【3†source】", [(2, "【2】"), (3, "【3†source】")]),
        ("A footnote[^1] x[^2]", [(1, "[^1]"), (2, "[^2]")]),
        ("A [1](https://source-1.example/) link", [(1, "[1]")]),
        ("Doubled [[2]]", [(2, "[2]")]),
        ("Twice [1] and [1]", [(1, "[1]"), (1, "[1]")]),
        ("Unknown [9], known [2]", [(2, "[2]")]),
        ("`[1]` is code, [2] is not", [(2, "[2]")]),
        ("``a`[1]`` is code, [2] is not", [(2, "[2]")]),
        ("```py\nx = [1]\n```\nsee [2]", [(2, "[2]")]),
        ("````\n```\n[1]\n````\nsee [2]", [(2, "[2]")]),
        ("a[1] x2[1] row_2[1] itemList[1] self.rows[1] args[1] but [2]", [(2, "[2]")]),
        ("args[0][1] but [2]", [(2, "[2]")]),
        ("a ` stands alone [1]\nand [2]", [(1, "[1]"), (2, "[2]")]),
        ("a ` stands alone [1]", [(1, "[1]")]),
    ],
)
def test_markers_are_found(text: str, expected: list[tuple[int, str]]) -> None:
    """A marker cites its sources; code and the index of an array cite none."""
    assert cited(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Nothing.",
        "[9]",
        "[0, 1]",
        "[3-1]",
        "[1",
        "[x] [1a]",
        "[1\n]",
        "`[1]`",
        "```\n[1]",
        "a[1]",
        "[" + "1," * 30 + "1]",
    ],
)
def test_an_answer_without_citations_lists_all_sources(text: str) -> None:
    """If nothing is cited, every source is listed once, at the end of the answer."""
    assert cited(text) == UNCITED
    assert {item["url_citation"]["start_index"] for item in annotations_of([text])} == {len(text)}


def test_annotations_have_the_form_of_the_api() -> None:
    """An annotation is a url_citation with its url, its title and its place in characters."""
    citation = {"url": "https://source-2.example/", "title": "Source 2", "start_index": 5, "end_index": 8}
    assert annotations_of(["🌍 is [", "2", "] ."]) == [{"type": "url_citation", "url_citation": citation}]


def test_no_sources_give_no_annotations() -> None:
    """Without sources there is nothing to cite."""
    assert annotations_of(["a [1]"], []) == []


def test_annotations_are_bounded() -> None:
    """An answer has at most 100 annotations, however many markers it has."""
    assert len(annotations_of(["[1] " * 5000])) == 100
    assert len(annotations_of(["none"], SOURCES * 50)) == 100


def test_annotations_may_be_asked_for_twice() -> None:
    """Asking for the annotations changes nothing."""
    finder = CitationFinder()
    finder.take("`[1]`")
    first = finder.annotations(SOURCES)
    assert finder.annotations(SOURCES) == first
    finder.take(" [2]")
    assert [item["url_citation"]["title"] for item in finder.annotations(SOURCES)] == ["Source 2"]


@given(ODD_TEXT, st.lists(st.integers(0, 60), max_size=8))
def test_splitting_makes_no_difference(text: str, cuts: list[int]) -> None:
    """The pieces in which an answer arrives do not change its annotations."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole = annotations_of([text])
    assert annotations_of(text[start:end] for start, end in pairwise(places)) == whole
    assert annotations_of(text) == whole


@given(ODD_TEXT)
def test_an_annotation_points_at_its_marker(text: str) -> None:
    """The place of an annotation is a whole marker, or the end of the answer."""
    for annotation in annotations_of([text]):
        citation = annotation["url_citation"]
        marker = text[citation["start_index"] : citation["end_index"]]
        assert marker == "" or (marker[0], marker[-1]) in (("[", "]"), ("【", "】"))


def calls_for(text: str) -> int:
    """How many functions are called to search one piece, those of Python's library included."""
    finder, calls = CitationFinder(), 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        finder.take(text)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("unit", ["[", "[1]", "[1, 2-", "a[1]", "`", "`a", "`[1]\n", "\n", "【1†a", "w" * 33 + "[1"])
def test_the_work_for_one_piece_is_bounded(unit: str) -> None:
    """Four times as many brackets, backticks or line breaks in one piece are hardly more work."""
    once, four_times = calls_for(unit * 20_000), calls_for(unit * 80_000)
    assert four_times < once * 1.1 + 100
    assert four_times < 200_000


def test_small_pieces_are_searched_to_the_end() -> None:
    """A long answer is cited to its end, however many pieces it comes in."""
    pieces = ["One ", "more ", "word", ", `code`", " and ", "a line.\n"] * 5_000
    assert [item["url_citation"]["title"] for item in annotations_of([*pieces, "See ", "[3", "]."])] == ["Source 3"]


@pytest.mark.parametrize("rest", ["[1" * 200_000, " " * 200_000 + "[1", "[1" + " " * 200_000])
def test_a_marker_does_not_go_on_behind_what_was_skipped(rest: str) -> None:
    """If the rest of a piece is not searched, the next one does not end its last marker, and is searched itself."""
    pieces = ["[2] ", rest, "2] [3]"]
    found = [annotation["url_citation"] for annotation in annotations_of(pieces)]
    assert ["".join(pieces)[item["start_index"] : item["end_index"]] for item in found] == ["[2]", "[3]"]


async def test_other_tasks_run_while_a_long_answer_is_searched() -> None:
    """A whole answer of brackets, which take longest, is read in slices; the result is that of one piece."""
    text, turns = "[" * 40_000 + "[2]", 0
    finding = asyncio.create_task(find_citations(text, SOURCES))
    while not finding.done():
        turns += 1
        await asyncio.sleep(0)
    assert finding.result() == annotations_of([text])
    assert turns > 10
