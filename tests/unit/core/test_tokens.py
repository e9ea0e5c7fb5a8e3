"""Token counts: those of a real tokenizer, never more than bytes, and an upstream's counts within what can be true."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.records import Usage
from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, TEMPLATE_TOKENS_MAX, Tokenizer, believable, least_tokens

TOKENIZER = Tokenizer()
OWN = Usage(17, 5, estimated=True)
PROMPT_BYTES = 200
PROMPT_MAX = PROMPT_BYTES + TEMPLATE_TOKENS_MAX
LIMIT = 100

counts = st.integers(0, 1 << 40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(texts)
def test_never_more_tokens_than_bytes(text: str) -> None:
    """A text has at most as many tokens as UTF-8 bytes, none only if it is empty, and the same number each time."""
    tokens = TOKENIZER.count(text)
    assert tokens <= len(text.encode())
    assert (tokens == 0) == (text == "")
    assert TOKENIZER.count(text) == tokens


def test_special_tokens_are_plain_text() -> None:
    """A client cannot hide text behind the name of a special token."""
    assert TOKENIZER.count("<|endoftext|>") > 1


def test_a_prompt_count_above_the_bytes_is_replaced_by_our_own() -> None:
    """Our own count has no cached tokens and is marked as estimated."""
    said = Usage(PROMPT_MAX + 1, 7, 5, completion_details={"reasoning_tokens": 9})
    corrected = Usage(OWN.prompt_tokens, 7, estimated=True, completion_details={"reasoning_tokens": 9})
    assert believable(said, OWN.prompt_tokens, PROMPT_BYTES, LIMIT) == (corrected, True)


@given(counts, counts, st.data())
def test_corrected_counts_are_within_their_bounds(prompt: int, completion: int, data: st.DataObject) -> None:
    """For any counts: nothing negative, nothing above a bound, and never more cached than prompt."""
    prompt_bytes, limit = data.draw(st.integers(0, 10**8)), data.draw(st.integers(1, 131_072))
    own = Usage(data.draw(st.integers(0, prompt_bytes)), data.draw(st.integers(0, limit)), estimated=True)
    said = Usage(prompt, completion, data.draw(st.integers(0, prompt)))
    usage, is_corrected = believable(said, own.prompt_tokens, prompt_bytes, limit)
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS_MAX
    assert 0 <= usage.completion_tokens <= limit
    assert is_corrected == (usage != said)


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
import cadenza.app
from cadenza.core import o200k
from cadenza.core.tokens import Tokenizer

tokenizer = Tokenizer()
print("tiktoken" in sys.modules, tokenizer.is_loaded)
with ThreadPoolExecutor(8) as threads:
    counts = set(threads.map(tokenizer.count, ["hello world"] * 8))
Tokenizer().load()
print(*counts, o200k.load.cache_info().misses, tokenizer.is_loaded)
"""


def test_the_tokenizer_is_loaded_once_by_the_first_count() -> None:
    """An import does not load it; the first count does, once for all threads and all tokenizers of the process."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout.split() == ["False", "False", "2", "1", "True"]


def test_a_prompt_is_not_counted_much_beyond_the_largest_window() -> None:
    """Once it is far too long, the rest is estimated by its characters; below that, the count is exact."""
    texts = ["é" * 5_000, "é" * 95_000]
    assert TOKENIZER.count_prompt(texts) == 100_000 + 2 * MESSAGE_OVERHEAD_TOKENS
    assert TOKENIZER.count_prompt(texts, 20_000) == pytest.approx(100_000, rel=0.01)


def test_the_fewest_tokens_follow_from_the_characters() -> None:
    """No token has more than 128 characters, so the lower bound never exceeds the count."""
    assert [least_tokens(chars) for chars in (0, 1, 128, 129)] == [0, 1, 1, 2]
    assert least_tokens(128 * 100) == TOKENIZER.count(" " * (128 * 100))
