"""Shares: a short document is not starved by a long one, and what is shown is said by labels."""

import msgspec
import pytest

from cadenza.parts.grounding.files.records import RankedDocument, RankedPassage, Section
from cadenza.parts.grounding.files.shown import describe, share_out, show
from tests.parts.grounding.files.made import TOKENIZER, pages, ranked

SMALL = [Section("", "The price of the anchor is 40 crowns.")]


def test_a_short_file_is_shown_whole_beside_long_ones() -> None:
    """The tokens that it does not need go to the others, which share them alike."""
    documents = [ranked(sections, "storm", 6000, 3) for sections in (pages(300), SMALL, pages(200))]
    long, short, other = share_out(documents, 6000)
    assert short.text == SMALL[0].text
    assert not short.is_cut
    assert long.is_cut
    assert other.is_cut
    assert 2500 < long.tokens <= 3000
    assert 2500 < other.tokens <= 3500
    assert sum(TOKENIZER.count(shown.text) for shown in (long, short, other)) <= 6000


def test_twenty_files_have_something_each() -> None:
    """However little there is, each file shows its beginning, and together they keep to the tokens."""
    shown = share_out([ranked(pages(50), "storm", 1000, 20) for _ in range(20)], 1000)
    assert all(one.text and one.is_cut for one in shown)
    assert sum(TOKENIZER.count(one.text) for one in shown) <= 1000


def test_files_that_fit_together_are_whole() -> None:
    """All of them, although none has fewer bytes than its share has tokens."""
    documents = [ranked(pages(3), "storm", 3000, 4) for _ in range(4)]
    assert [one.is_cut for one in share_out(documents, 3000)] == [False] * 4


def test_no_documents_take_nothing() -> None:
    """There is nothing to share out."""
    assert share_out([], 1000) == []


def document(labels: list[str], counts: list[int], taken: list[int]) -> tuple[RankedDocument, list[RankedPassage]]:
    """A document with so many passages in each section, and the passages with these numbers."""
    sections = [section for section, count in enumerate(counts) for _ in range(count)]
    passages = [RankedPassage(number, section, f"<{number}>", 1) for number, section in enumerate(sections)]
    whole = RankedDocument("", labels, counts, [0] * len(labels), passages, len(passages), len(passages), is_whole=True)
    return whole, [passages[number] for number in taken]


PAGES = [f"page {number}" for number in range(1, 301)]


@pytest.mark.parametrize(
    ("labels", "counts", "taken", "said"),
    [
        (PAGES, [1] * 300, [0, 2, 16, 17, 18], "pages 1, 3, 17-19 of 300"),
        (PAGES, [1] * 300, [4], "page 5 of 300"),
        (PAGES, [2] * 300, [0, 1, 4, 8, 9], "pages 1, 5 of 300; parts of page 3"),
        (PAGES, [2] * 300, [0, 4], "parts of pages 1, 3 of 300"),
        (PAGES, [1] * 300, list(range(300)), "all 300 pages"),
        (PAGES, [1] * 300, list(range(0, 300, 2)), "150 of 300 pages"),
        (PAGES, [2] * 300, list(range(0, 600, 4)), "parts of 150 of 300 pages"),
        (PAGES, [2] * 300, [0, 1, *range(4, 600, 4)], "1 of 300 pages; parts of 149 more"),
        (["sheet Prices", "sheet Old 2019", "sheet X"], [1, 1, 1], [0, 1], "sheets Prices, Old 2019 of 3"),
        (["page 1", "page 2", "sheet A"], [1, 1, 1], [0, 2], "page 1 of 2; sheet A of 1"),
        ([""], [9], [0, 1, 5], "3 of 9 passages"),
        ([""], [9], list(range(9)), "all of it"),
        (["page 1"], [1], [0], "all of it"),
    ],
)
def test_what_is_shown_is_said_by_labels(labels: list[str], counts: list[int], taken: list[int], said: str) -> None:
    """Numbers that follow each other are joined, parts are told from wholes, and a long list becomes a count."""
    assert describe(*document(labels, counts, taken)) == said


def test_omissions_are_marked() -> None:
    """Between passages, and at the end."""
    whole, _ = document(["page 1", "page 2"], [3, 2], [])
    best = [whole.passages[number] for number in (0, 2, 3)]
    cut = msgspec.structs.replace(whole, passages=best, is_whole=False)
    assert show(cut, 3).text == "[page 1]\n<0>\n\n[…]\n\n<2>\n\n[page 2]\n<3>\n\n[…]"
