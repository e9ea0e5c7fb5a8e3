"""Long texts are counted in parts: with the same count if they have spaces, else with about a token more per cut."""

from hypothesis import given
from hypothesis import strategies as st

from cadenza.core import o200k
from cadenza.core.tokens import PART_CHARS, Tokenizer

SMALL = 64  # characters of a part, so that short texts have many parts
TOKENIZER = Tokenizer()
TOKENIZER_OF_SMALL_PARTS = Tokenizer(SMALL)
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
    return len(o200k.load().encode_ordinary(text))


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


def test_a_run_of_a_megabyte_is_counted_in_parts() -> None:
    """It is never counted whole: the tokenizer's pattern gives up in a run of a million blanks."""
    assert TOKENIZER.count(" " * (64 * PART_CHARS)) == 64 * whole(" " * PART_CHARS)
