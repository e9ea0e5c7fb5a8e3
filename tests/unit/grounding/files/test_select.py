"""The cut by relevance: what fits comes whole; else the beginning, what fits the question, and its neighbours."""

import time
from itertools import pairwise

import pytest

from cadenza.core.tokens import Tokenizer
from cadenza.grounding.files.messages import Room
from cadenza.grounding.files.records import Section
from cadenza.grounding.files.select import best_first, rank_document, spread
from cadenza.grounding.files.shares import share_out, show
from tests.unit.grounding.files.made import TOKENIZER, pages, ranked, sentence

BOOK = pages(300)
NEEDLE = "The lighthouse keeper of Aldermoor was named Ottoline."


def with_needle(place: int) -> list[Section]:
    sections = list(BOOK)
    sections[place] = Section(sections[place].label, f"{sections[place].text} {NEEDLE}")
    return sections


def test_a_document_that_fits_comes_whole() -> None:
    """In its own order, exactly as it is, each section headed by its label."""
    [shown] = share_out([ranked([Section("page 1", "  a\n b\n"), Section("page 2", "c")], "b", 1000)], 1000)
    assert shown.text == "[page 1]\n  a\n b\n\n\n[page 2]\nc"
    assert not shown.is_cut
    assert shown.shown == "all 2 pages"


def test_a_long_section_comes_whole_and_unchanged() -> None:
    """That it was split and joined again is not seen."""
    text = "\n\n".join(f"    indented {sentence(40, number)}\n\tline" for number in range(100))
    [shown] = share_out([ranked([Section("", text)], "ship", 100_000)], 100_000)
    assert shown.text == text
    assert not shown.is_cut


def test_bytes_decide_without_counting() -> None:
    """One document with no more bytes than there are tokens is not counted: the tokenizer need not be loaded."""
    tokenizer = Tokenizer()
    room = Room(5000, 5000)
    assert rank_document("", pages(3), "ship", room, tokenizer.count).is_whole
    assert not tokenizer.is_loaded


@pytest.mark.parametrize("place", [0, 150, 299])
def test_the_passage_that_answers_is_shown(place: int) -> None:
    """Wherever it stands, with the beginning of the document, in the document's order, within the tokens."""
    [shown] = share_out([ranked(with_needle(place), "Who kept the lighthouse of Aldermoor?", 2000)], 2000)
    assert NEEDLE in shown.text
    assert shown.text.startswith("[page 1]\n")
    assert shown.is_cut
    assert TOKENIZER.count(shown.text) <= shown.tokens <= 2000
    assert shown.tokens > 1500
    labels = [int(line[6:-1]) for line in shown.text.splitlines() if line.startswith("[page ")]
    assert labels == sorted(labels)
    assert place + 1 in labels
    assert "of 300" in shown.shown


def test_neighbours_of_a_good_passage_fill_the_room() -> None:
    """If one passage fits the question, those before and after it come next, before any other."""
    document = ranked(with_needle(150), "lighthouse Aldermoor", 4000)
    assert [passage.number for passage in document.passages[:6]] == [0, 150, 151, 149, 152, 148]


@pytest.mark.parametrize("question", ["", "Summarise this.", "Please summarize the attached document", "🙂", "zzz"])
def test_without_a_match_passages_are_spread_evenly(question: str) -> None:
    """The beginning and the end are shown, and no part of the document is left out for long."""
    document = ranked(BOOK, question, 4000)
    numbers = sorted(passage.number for passage in document.passages)
    assert numbers[0] == 0
    assert numbers[-1] == 299
    gaps = [after - before for before, after in pairwise(numbers)]
    assert max(gaps) <= 4 * 300 / len(numbers)


def test_every_passage_is_ranked_once() -> None:
    """The order has all passages, whatever fits."""
    texts = [section.text for section in with_needle(7)]
    for question in ("", "lighthouse", "ship captain"):
        assert sorted(best_first(texts, question)) == list(range(300))
    assert sorted(spread(77)) == list(range(77))
    assert [list(spread(count)) for count in (0, 1, 2, 4)] == [[], [0], [0, 1], [0, 2, 1, 3]]


@pytest.mark.parametrize("tokens_max", [0, 1, 7, 40, 100, 333, 1000, 5000, 200_000])
@pytest.mark.parametrize("text", ["漢字" * 5000, "x" * 50_000, "ab\n" * 5000, "word " * 9000, "= " * 9000, "é" * 9000])
def test_what_is_shown_has_no_more_tokens_than_allowed(text: str, tokens_max: int) -> None:
    """In any script, by the tokenizer's own count of the result."""
    shown = show(ranked([Section("page 1", text), Section("", text)], "ab 字", tokens_max), tokens_max)
    assert TOKENIZER.count(shown.text) <= shown.tokens <= tokens_max


def test_a_small_share_still_shows_several_passages() -> None:
    """Passages are shorter where there is little room."""
    shown = show(ranked(with_needle(200), "lighthouse", 600), 600)
    assert NEEDLE.split()[1] in shown.text
    assert shown.text.count("[page ") >= 3


def test_a_book_is_cut_soon() -> None:
    """A megabyte takes well under a second; the bound is generous for a busy machine."""
    book = pages(300, words=550)
    assert sum(len(section.text) for section in book) > 1_000_000
    TOKENIZER.load()
    began_s = time.process_time()
    ranked(book, "Which captain lost the cargo in a storm near the island?", 8000)
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("unit", ["x", "漢", "-", " a"])
def test_a_line_of_10_mb_is_cut_too(unit: str) -> None:
    """Without spaces to break at, it is cut anywhere, in bounded time."""
    began_s = time.process_time()
    shown = show(ranked([Section("", unit * (10_000_000 // len(unit.encode())))], "What is it about?", 2000), 2000)
    assert time.process_time() - began_s < 30
    assert shown.is_cut
    assert TOKENIZER.count(shown.text) <= 2000
