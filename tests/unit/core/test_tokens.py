"""Token counts: a real tokenizer's, never above the bytes, and the same each time."""

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.records import Usage
from cadenza.core.tokens import (
    MESSAGE_OVERHEAD_TOKENS,
    TEMPLATE_TOKENS_MAX,
    believable,
    count_prompt,
    count_tokens,
)

OWN = Usage(17, 5, estimated=True)
PROMPT_BYTES = 200
PROMPT_MAX = PROMPT_BYTES + TEMPLATE_TOKENS_MAX
LIMIT = 100

counts = st.integers(0, 1 << 40)
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


@pytest.mark.parametrize(
    "said",
    [
        Usage(0, 0),
        Usage(0, LIMIT),
        Usage(PROMPT_MAX, 0, PROMPT_MAX),
        Usage(PROMPT_MAX, LIMIT, 3, completion_details={"reasoning_tokens": 99}),
        OWN,
    ],
)
def test_counts_that_can_be_true_are_left_alone(said: Usage) -> None:
    """Up to each bound, and at zero, the counts are the upstream's own in every field."""
    assert believable(said, OWN.prompt_tokens, PROMPT_BYTES, LIMIT) == (said, False)


def test_more_output_than_was_allowed_is_cut_to_it() -> None:
    """The output is the limit, its details are dropped with it, and the prompt stays what the upstream said."""
    said = Usage(40, LIMIT + 1, 3, completion_details={"reasoning_tokens": 9})
    assert believable(said, OWN.prompt_tokens, PROMPT_BYTES, LIMIT) == (Usage(40, LIMIT, 3), True)


def test_more_prompt_than_was_sent_is_our_own_count() -> None:
    """A prompt of more tokens than bytes is counted here, none of it cached, and is marked as estimated."""
    said = Usage(PROMPT_MAX + 1, 7, 5, completion_details={"reasoning_tokens": 9})
    mended = Usage(OWN.prompt_tokens, 7, estimated=True, completion_details={"reasoning_tokens": 9})
    assert believable(said, OWN.prompt_tokens, PROMPT_BYTES, LIMIT) == (mended, True)


def test_both_bounds_are_held_at_once() -> None:
    """Absurd in both ways is mended in both."""
    assert believable(Usage(10**12, 10**12, 10**12), OWN.prompt_tokens, PROMPT_BYTES, LIMIT) == (
        Usage(OWN.prompt_tokens, LIMIT, estimated=True),
        True,
    )


def test_an_estimate_that_is_cut_is_still_an_estimate() -> None:
    """Our own count above the limit is cut to it, and does not pass for the upstream's."""
    own = Usage(17, LIMIT + 1, estimated=True)
    assert believable(own, own.prompt_tokens, PROMPT_BYTES, LIMIT)[0] == Usage(17, LIMIT, estimated=True)


@settings(max_examples=300, deadline=None)
@given(counts, counts, st.data())
def test_what_is_believed_is_within_what_can_be_true(prompt: int, completion: int, data: st.DataObject) -> None:
    """Whatever an upstream says: nothing negative, nothing above a bound, and never more cached than prompt."""
    prompt_bytes, limit = data.draw(st.integers(0, 10**8)), data.draw(st.integers(1, 131_072))
    own = Usage(data.draw(st.integers(0, prompt_bytes)), data.draw(st.integers(0, limit)), estimated=True)
    said = Usage(prompt, completion, data.draw(st.integers(0, prompt)))
    usage, is_mended = believable(said, own.prompt_tokens, prompt_bytes, limit)
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS_MAX
    assert 0 <= usage.completion_tokens <= limit
    assert is_mended == (usage != said)


PROGRAM = """
import cadenza.app
from cadenza.core.tokens import count_tokens, is_loaded, load
was_loaded = is_loaded()
counted = count_tokens("hello world")
print(was_loaded, counted, is_loaded(), load() is load())
"""


def test_the_tokenizer_is_loaded_by_the_first_count() -> None:
    """The whole service is there without it; whoever counts first loads it, once."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "2", "True", "True"]
