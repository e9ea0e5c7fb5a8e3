"""Passages: no text is lost, none is too long, and they end where a reader would end them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.grounding.files.passages import PASSAGE_CHARS, split_exactly, split_sections, split_text
from cadenza.grounding.files.records import Passage, Section

TEXTS = st.text(st.sampled_from("ab .\n\t。é漢"), max_size=400)


@given(TEXTS, st.integers(2, 50))
def test_no_text_is_lost_or_repeated(text: str, chars_max: int) -> None:
    """Together, the passages have all characters of the text but blanks, in their order, and none is too long."""
    pieces = list(split_exactly(text, chars_max))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= chars_max and not piece.isspace() for piece in pieces)
    assert list(split_text(text, chars_max)) == [piece.strip() for piece in pieces]


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
    assert next(split_text(text, 20)) == first


def test_a_passage_has_the_label_of_its_section() -> None:
    """No passage spans two sections, and an empty section has none."""
    sections = [Section("page 1", "a\n"), Section("page 2", " \n"), Section("page 3", "b" * (PASSAGE_CHARS + 1))]
    passages = list(split_sections(sections))
    assert [passage.label for passage in passages] == ["page 1", "page 3", "page 3"]
    assert passages[0] == Passage("page 1", "a")


@pytest.mark.parametrize("unit", ["x", " ", "\n", "\n x", ".", "\n \n", "漢", ". "])
def test_splitting_is_linear(unit: str) -> None:
    """A text of 2 MB on one line, or with nothing but breaks, takes no more than a few seconds of CPU time."""
    began_s = time.process_time()
    for _ in split_exactly(unit * (2_000_000 // len(unit))):
        pass
    assert time.process_time() - began_s < 10
