"""Long texts are counted in parts: the same count where there are spaces, a token a cut where there are none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rs_bpe.bpe import openai

from cadenza.core import tokens
from cadenza.core.tokens import PART_CHARS, count_tokens

SMALL = 64  # characters of a part, so that short texts have many
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


def in_small_parts(text: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PART_CHARS", SMALL)
        return count_tokens(text)


def cuts_of(text: str, part_chars: int) -> int:
    """How often a text without spaces is cut."""
    return max(0, (len(text) - 1) // part_chars)


def long_text(seed: int, chars: int) -> str:
    choice = random.Random(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < chars:
        parts += [" ".join(choice.choices(WORDS, k=200)), choice.choice([" ", "\n", " \n ", "   "])]
    return "".join(parts)


@pytest.mark.parametrize("seed", range(4))
def test_a_long_text_of_words_has_the_tokenizers_own_count(seed: int) -> None:
    """Where there are spaces nothing is lost or added, however many parts there are."""
    text = long_text(seed, 6 * PART_CHARS)
    assert count_tokens(text) == whole(text)


@pytest.mark.parametrize("chars", [PART_CHARS - 1, PART_CHARS, PART_CHARS + 1, 2 * PART_CHARS, 2 * PART_CHARS + 1])
def test_the_size_of_a_part_is_no_seam(chars: int) -> None:
    """Just below, at and above the size of a part the count of words is the tokenizer's own."""
    text = ("four words and more " * chars)[:chars]
    assert count_tokens(text) == whole(text)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12), max_size=120))
def test_words_with_a_space_between_them_are_cut_without_loss(said: list[str]) -> None:
    """Words that fit into a part, of letters of any script, digits and marks, have the tokenizer's own count."""
    text = " ".join(said)
    assert in_small_parts(text) == whole(text)


@settings(max_examples=120, deadline=None)
@given(spaced)
def test_any_text_with_spaces_is_counted_nearly(text: str) -> None:
    """Runs of white space and line ends, which may be longer than a part, cost at most a token for each part."""
    assert abs(in_small_parts(text) - whole(text)) <= len(text) // (SMALL // 2) + 1


@settings(max_examples=120, deadline=None)
@given(unspaced)
def test_a_text_without_spaces_differs_by_a_token_a_cut(text: str) -> None:
    """Where no space is, a cut goes through a token at most, and never makes a text cheaper by more than that."""
    assert abs(in_small_parts(text) - whole(text)) <= cuts_of(text, SMALL)


@pytest.mark.parametrize("unit", ["a", "ab", "0", "é", "🎼", "音", "\n", "\t", "-", "=", "Word", "<|endoftext|>"])
def test_a_long_text_without_spaces_differs_by_a_token_a_cut(unit: str) -> None:
    """A monotonous text of several parts is within one token for each cut."""
    text = unit * (5 * PART_CHARS // len(unit))
    assert abs(count_tokens(text) - whole(text)) <= cuts_of(text, PART_CHARS)


@pytest.mark.parametrize("text", [" " * (3 * PART_CHARS), "a" + " " * (2 * PART_CHARS) + "b", " \n" * (2 * PART_CHARS)])
def test_a_long_run_of_spaces_is_counted(text: str) -> None:
    """Spaces alone, in which there is no good place to cut, are within one token for each cut."""
    assert abs(count_tokens(text) - whole(text)) <= len(text) // PART_CHARS + 1


@settings(max_examples=120, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=600))
def test_every_text_is_counted(text: str) -> None:
    """No text is refused, and none has more tokens than bytes."""
    assert 0 <= in_small_parts(text) <= len(text.encode())
