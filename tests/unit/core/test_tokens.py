"""Token counts: a real tokenizer's, never above the bytes, and the same each time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, count_prompt, count_tokens

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=150, deadline=None)
@given(texts)
def test_never_more_tokens_than_bytes(text: str) -> None:
    """A text has at most as many tokens as UTF-8 bytes, and none only where it is empty."""
    assert count_tokens(text) <= len(text.encode())
    assert (count_tokens(text) == 0) == (text == "")


@settings(max_examples=150, deadline=None)
@given(texts, texts)
def test_parts_count_about_as_much_as_the_whole(first: str, second: str) -> None:
    """Cut in two, a text has no fewer tokens than whole but for the seam, and at most its bytes."""
    whole = count_tokens(first + second)
    apart = count_tokens(first) + count_tokens(second)
    assert whole <= apart + 4
    assert apart <= len((first + second).encode())


@settings(max_examples=100, deadline=None)
@given(texts)
def test_a_count_is_stable(text: str) -> None:
    """The same text has the same count each time."""
    assert count_tokens(text) == count_tokens(text)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("hello", 1), ("hello world", 2), ("Hello, world!", 4), ("\n\n", 1)]
)
def test_counts_are_those_of_o200k(text: str, tokens: int) -> None:
    """Well-known texts have the counts that the tokenizer is known for."""
    assert count_tokens(text) == tokens


def test_special_tokens_are_plain_text() -> None:
    """A client cannot hide text behind the name of a special token."""
    assert count_tokens("<|endoftext|>") > 1


@pytest.mark.parametrize("unit", ["a", " ", "\n", "ab", "é", "🎼", "<|endoftext|>", "0"])
def test_a_monotonous_text_is_counted_in_linear_time(unit: str) -> None:
    """A megabyte of one repeated piece, the bane of naive tokenizers, takes well under a few seconds."""
    started_s = time.process_time()
    count_tokens(unit * (1_000_000 // len(unit.encode())))
    assert time.process_time() - started_s < 5


def test_each_message_of_a_prompt_has_its_overhead() -> None:
    """A conversation counts its texts and a few tokens per message; none counts nothing."""
    assert count_prompt(["hello", "", "hello world"]) == 3 + 3 * MESSAGE_OVERHEAD_TOKENS
    assert count_prompt([]) == 0
