"""Ranking: the texts that fit a question, in many scripts, and whatever the question has in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.files.ranking import WORDS_MAX, rank, words_of

TEXTS = [
    "The invoices were paid in March, in full.",
    "Der Bürgermeister eröffnete die Brücke über den Fluss.",
    "東京の人口は約千四百万人です。",
    "The résumé lists three jobs and a degree.",
    "서울은 대한민국의 수도이다.",
    "Nothing of interest stands here, AND there are NOT many OR few words.",
]


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("Was the invoice paid?", 0),  # stems
        ("INVOICES", 0),
        ("burgermeister", 1),  # accents
        ("BRÜCKE", 1),
        ("resume", 3),
        ("東京の人口", 2),
        ("人口は？", 2),
        ("수도", 4),
        ("jobs, degree", 3),
    ],
)
def test_a_text_is_found_by_its_words(question: str, best: int) -> None:
    """By their stems, without accents, without regard to case, and by single characters where there are no spaces."""
    assert rank(TEXTS, question)[0] == best


def test_the_better_fit_comes_first() -> None:
    """A text with the rare word of the question comes before those with the common one."""
    texts = ["The contract is long.", "The contract ends by termination.", "A contract, a contract.", "No match."]
    assert rank(texts, "termination of the contract")[0] == 1
    assert set(rank(texts, "termination of the contract")) == {0, 1, 2}


@pytest.mark.parametrize("question", ["", " ", "?!", '"', "'", "*", "\x00", "_", "\ud800", "🙂"])
def test_a_question_without_words_finds_nothing(question: str) -> None:
    """Nothing is an error."""
    assert rank(TEXTS, question) == []


@pytest.mark.parametrize(
    "question", ['NEAR("a" "b", 2)', "text: few", "few*", "^few", "few AND (", 'few" OR "x', "few -many", "{text}: few"]
)
def test_operators_of_the_index_are_words(question: str) -> None:
    """What FTS5 would read as an operator is a word of the question, and no error."""
    assert rank(TEXTS, question) in ([5], [])
    assert rank(TEXTS, "NOT few") == [5]


@given(st.text(max_size=80), st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=4))
def test_no_question_is_an_error(question: str, texts: list[str]) -> None:
    """Whatever the question and the texts have in them, the result is a list of indexes, each once."""
    found = rank(texts, question)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(len(texts)))


def test_words_that_say_nothing_are_left_out() -> None:
    """Unless the question has no others."""
    assert words_of("What is the capital of the country?") == ["capital", "country"]
    assert words_of("What is this?") == ["what", "is", "this"]


def test_of_a_long_question_both_ends_count() -> None:
    """The question may stand before or after a long text."""
    words = words_of("first " + " ".join(f"word{number}" for number in range(1000)) + " last")
    assert len(words) == WORDS_MAX
    assert {"first", "last"} <= set(words)
