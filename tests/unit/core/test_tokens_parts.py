"""Long texts are counted in parts: with the same count if they have spaces, else with about a token more per cut."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rs_bpe.bpe import openai

from cadenza.core.tokens import Tokenizer

SMALL = 64  # characters of a part, so that short texts have many parts
TOKENIZER = Tokenizer()
TOKENIZER_OF_SMALL_PARTS = Tokenizer(SMALL)
O200K = openai.o200k_base()
WORDS = [
    "a",
    "the",
    "Word",
    "naïve",
    "don't",
    "1234567",
    "x=1;",
    "…",
    "音楽",
    "🎼",
    "\n",
    "\n\n",
    "\t",
    "  ",
    "     ",
    "--",
]

words = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
spaced = st.lists(words, max_size=120).map(" ".join)
unspaced = st.text(st.characters(exclude_categories=["Cs", "Z"], exclude_characters="\t\n\r"), max_size=600)


def whole(text: str) -> int:
    """The tokenizer's own count."""
    return int(O200K.count(text))


def cuts_of(text: str, part_chars: int) -> int:
    """How many times a text without spaces is cut."""
    return max(0, (len(text) - 1) // part_chars)


@given(st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12), max_size=120))
def test_words_between_spaces_have_the_tokenizers_own_count(said: list[str]) -> None:
    """Words shorter than a part, in any script and with digits and punctuation, are never cut."""
    text = " ".join(said)
    assert TOKENIZER_OF_SMALL_PARTS.count(text) == whole(text)


@given(spaced)
def test_any_text_with_spaces_is_counted_nearly_exactly(text: str) -> None:
    """Runs of white space, which may be longer than a part, cost at most a token for each part."""
    assert abs(TOKENIZER_OF_SMALL_PARTS.count(text) - whole(text)) <= len(text) // (SMALL // 2) + 1


@given(unspaced)
def test_a_text_without_spaces_differs_by_a_token_for_each_cut(text: str) -> None:
    """Without a space a cut may go through a token, which changes the count by at most one."""
    assert abs(TOKENIZER_OF_SMALL_PARTS.count(text) - whole(text)) <= cuts_of(text, SMALL)


@pytest.mark.parametrize("unit", ["-", "=", "*", "/", "#", " ", "\t"])
@pytest.mark.parametrize("chars", [23, 24, 63, 64, 65, 127, 128, 129, 255, 256, 1000, 4096])
def test_a_run_of_one_character_has_the_tokenizers_own_count(unit: str, chars: int) -> None:
    """Alone, a run has exactly the tokens that it has when it is counted whole, however long it is."""
    assert TOKENIZER.count(unit * chars) == whole(unit * chars)


@given(st.lists(st.tuples(st.sampled_from("-=*/# \t\na>"), st.integers(1, 300)), max_size=12))
def test_runs_within_a_text_cost_at_most_two_tokens_each(runs: list[tuple[str, int]]) -> None:
    """A long run is counted apart from what surrounds it, which changes the count by at most two tokens."""
    text = "".join(char * chars for char, chars in runs)
    long_runs = sum(len([*run]) >= 24 for _, run in groupby(text))
    assert abs(TOKENIZER.count(text) - whole(text)) <= 2 * long_runs


@pytest.mark.parametrize(
    "text", ["def f():\n" + " " * 40 + "return 1\n", "# " + "-" * 60 + "\n", "a\n" + "\t" * 12 + "b"]
)
def test_ordinary_indents_and_rulers_are_counted_exactly(text: str) -> None:
    """Indents and rulers as they are in code and prose are not counted apart."""
    assert TOKENIZER.count(text) == whole(text)
