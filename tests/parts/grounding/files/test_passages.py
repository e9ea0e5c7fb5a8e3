"""Documents are split into passages, and those worth showing come first."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.messages import TokenBudget
from cadenza.parts.grounding.files.passages import (
    PASSAGE_CHARS,
    Ranking,
    rank_document,
    split_exactly,
    split_pieces,
    spread,
)
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import Section
from cadenza.parts.grounding.files.shown import DocumentText, share_out, show
from tests.parts.grounding.files.made import TOKENIZER, pages, ranked, sentence

TEXTS = st.text(st.sampled_from("ab .\n\t。é漢"), max_size=400)


@given(TEXTS, st.integers(2, 50))
def test_no_text_is_lost_or_repeated(text: str, chars_max: int) -> None:
    """Together, the passages have all characters of the text but blanks, in their order, and none is too long."""
    pieces = list(split_exactly(text, chars_max))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= chars_max and not piece.isspace() for piece in pieces)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one two. three\n\nfour five\nsix", "one two. three"),  # a paragraph
        ("one two. three\nfour five six s", "one two. three"),  # a line
        ("one two three. four five six se", "one two three."),  # a sentence
        ("one two three four five six sev", "one two three four"),  # a word
        ("onetwothreefourfivesixseveneight", "onetwothreefourfives"),  # anywhere
        ("一二三四五六七八九十一。三四五六七八九十一二三", "一二三四五六七八九十一。"),
    ],
)
def test_a_passage_ends_at_the_best_place(text: str, first: str) -> None:
    """At a paragraph if it can, else at a line, a sentence, a space, or anywhere."""
    assert next(split_exactly(text, 20)).strip() == first


@pytest.mark.parametrize("unit", ["x", "\n", ". "])
def test_splitting_is_linear(unit: str) -> None:
    """A text of 2 MB on one line, or with nothing but breaks, takes no more than a few seconds of CPU time."""
    began_s = time.process_time()
    for _ in split_exactly(unit * (2_000_000 // len(unit))):
        pass
    assert time.process_time() - began_s < 10


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
    room = TokenBudget(5000, 5000)
    assert rank_document("", pages(3), AskedOfFiles("ship"), room, tokenizer.count).is_whole
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
    pieces = split_pieces(with_needle(7), PASSAGE_CHARS)
    for question in ("", "lighthouse", "ship captain"):
        assert sorted(Ranking(pieces, AskedOfFiles(question)).best_first()) == list(range(len(pieces)))
    assert sorted(spread(77)) == list(range(77))
    assert [list(spread(count)) for count in (0, 1, 2, 4)] == [[], [0], [0, 1], [0, 2, 1, 3]]


@pytest.mark.parametrize("tokens_max", [0, 1, 40, 333, 5000, 200_000])
@pytest.mark.parametrize("text", ["漢字" * 5000, "x" * 50_000, "ab\n" * 5000, "é" * 9000])
def test_what_is_shown_has_no_more_tokens_than_allowed(text: str, tokens_max: int) -> None:
    """In any script, by the tokenizer's own count of the result."""
    shown = show(ranked([Section("page 1", text), Section("", text)], "ab 字", tokens_max), tokens_max)
    assert TOKENIZER.count(shown.text) <= shown.tokens <= tokens_max


def test_a_small_share_still_shows_several_passages() -> None:
    """Passages are shorter where there is little room."""
    shown = show(ranked(with_needle(200), "lighthouse", 600), 600)
    assert NEEDLE.split()[1] in shown.text
    assert shown.text.count("[page ") >= 3


@pytest.mark.slow(reason="files as large as they may be")
@pytest.mark.parametrize("unit", ["x", "漢", "-", " a"])
def test_a_line_of_10_mb_is_cut_too(unit: str) -> None:
    """Without spaces to break at, it is cut anywhere, in bounded time."""
    began_s = time.process_time()
    shown = show(ranked([Section("", unit * (10_000_000 // len(unit.encode())))], "What is it about?", 2000), 2000)
    assert time.process_time() - began_s < 30
    assert shown.is_cut
    assert TOKENIZER.count(shown.text) <= 2000


ROWS = [f"ORD-{number},Customer{number * 7},{number % 5},{number}.50\n" for number in range(3000)]
TABLE = [Section("", "order,customer,region,amount\n" + "".join(ROWS))]
ROOM = 30_000


def shown_of(question: str, sections: list[Section] = TABLE, before: str = "") -> DocumentText:
    asked = AskedOfFiles(question, before)
    [shown] = share_out([rank_document("", sections, asked, TokenBudget(ROOM, ROOM), TOKENIZER.count)], ROOM)
    return shown


@pytest.mark.parametrize(
    "question", ["amount of Customer9100?", "What did customer 9100 pay in total?", "Sum of all orders of Customer9100"]
)
def test_a_question_about_one_row_takes_that_row_and_the_head(question: str) -> None:
    """Also if it asks for a total: the row is named. What is left out is told in rows."""
    shown = shown_of(question)
    assert shown.text.startswith("order,customer,region,amount\n")
    assert ROWS[1300] in shown.text
    assert shown.tokens <= 600
    assert re.fullmatch(r"\d+ of 3,000 rows", shown.shown)
    assert shown.lacks_rows


@pytest.mark.parametrize("question", ["What is the total amount?", "Average amount per region", "Summarize the table"])
def test_a_question_about_all_rows_takes_as_many_as_there_is_room_for(question: str) -> None:
    """They are spread over the table, and are called partial."""
    shown = shown_of(question)
    assert shown.tokens > 0.95 * ROOM
    assert shown.lacks_rows


@pytest.mark.parametrize(
    ("question", "least", "most"),
    [
        ("Who kept the lighthouse of Aldermoor?", 1000, 2000),
        ("Thanks a lot!", 1000, 2000),
        ("What is in this file?", 14_000, 16_000),
        ("Warum ist das so?", 14_000, 16_000),  # no word of it is in the file
        ("ship and crew and cargo", 8_000, 16_000),  # many passages fit about equally well
        ("Please translate it.", 28_000, 30_000),
    ],
)
def test_a_question_takes_what_it_needs(question: str, least: int, most: int) -> None:
    """Few passages if they fit clearly better than others, a sample if it is not clear, all if it is about all."""
    assert least < shown_of(question, with_needle(200)).tokens <= most


def test_a_row_comes_with_the_head_of_its_table() -> None:
    """Also where the table stands in the middle of a text."""
    rows = "".join(f"| Customer{number * 7} | {number}.50 |\n" for number in range(3000))
    text = f"{sentence(400, 1)}\n\n| Customer | Amount |\n| --- | --- |\n{rows}\n{sentence(400, 2)}"
    assert "| Customer | Amount |" in shown_of("Find Customer9100", [Section("", text)]).text


def test_a_follow_up_is_read_with_the_question_before() -> None:
    """It has too few words of its own to choose by."""
    assert NEEDLE in shown_of("And his name?", with_needle(200), before="Who kept the lighthouse of Aldermoor?").text


def test_a_small_document_is_shown_whole() -> None:
    """Whatever the question is."""
    assert not shown_of("Hello!", pages(12)).is_cut


def test_a_file_without_a_word_of_the_question_shows_little_beside_others() -> None:
    """The tokens go to the file that has them."""
    found, other = (ranked(one, "lighthouse Aldermoor", ROOM, 2) for one in (with_needle(200), BOOK))
    assert [one.tokens <= 2000 for one in share_out([found, other], ROOM)] == [True, True]
