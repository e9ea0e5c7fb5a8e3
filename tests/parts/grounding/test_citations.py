"""Which sources an answer cites."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.grounding import Source
from cadenza.parts.grounding.answer import ANSWER_CHARS_MAX, find_citations

SOURCES = [Source(f"https://source-{number}.example/", f"Source {number}") for number in range(1, 5)]
ODD_TEXT = st.text(st.sampled_from("[]【】`\n 1239-–,;^†ax_.(é今"), max_size=60)


def cited(text: str) -> list[tuple[int, str]]:
    """The number of each cited source, with the text of its marker."""
    citations = [annotation["url_citation"] for annotation in find_citations(text, SOURCES)]
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
        ("```\n[1]\n`````\nsee [2]", [(2, "[2]")]),
        ("a\n`[1]` is code, [2] is not", [(2, "[2]")]),
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
    assert {item["url_citation"]["start_index"] for item in find_citations(text, SOURCES)} == {len(text)}


def test_annotations_have_the_form_of_the_api() -> None:
    """An annotation is a url_citation with its url, its title and its place in characters."""
    citation = {"url": "https://source-2.example/", "title": "Source 2", "start_index": 5, "end_index": 8}
    assert find_citations("🌍 is [2] .", SOURCES) == [{"type": "url_citation", "url_citation": citation}]


def test_annotations_are_bounded() -> None:
    """An answer has at most 100 annotations, however many markers it has, and none without sources."""
    assert len(find_citations("[1] " * 5000, SOURCES)) == 100
    assert len(find_citations("none", SOURCES * 50)) == 100
    assert find_citations("a [1]", []) == []


@given(ODD_TEXT)
def test_an_annotation_points_at_its_marker(text: str) -> None:
    """The place of an annotation is a whole marker, or the end of the answer."""
    for annotation in find_citations(text, SOURCES):
        citation = annotation["url_citation"]
        marker = text[citation["start_index"] : citation["end_index"]]
        assert marker == "" or (marker[0], marker[-1]) in (("[", "]"), ("【", "】"))


@pytest.mark.parametrize(
    "unit", ["[", "[1]", "[1, 2-", "[1,", "a[1]", "`", "`a", "`[1]\n", "`1", "\n", "【1†a", "w" * 33 + "[1"]
)
def test_the_work_for_one_answer_is_bounded(unit: str) -> None:
    """The longest answer of brackets, backticks or line breaks takes milliseconds."""
    began_s = time.process_time()
    find_citations(unit * (4 * ANSWER_CHARS_MAX // len(unit)), SOURCES)
    assert time.process_time() - began_s < 0.5


def test_a_long_answer_is_searched_to_its_end() -> None:
    """Lines and words of an ordinary answer do not count."""
    assert cited("One more word, and a line.\n" * 15_000 + "See [3].") == [(3, "[3]")]
