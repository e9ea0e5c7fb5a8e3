"""The size of a prompt: a bound that is known at once, and a count that is made only if it decides something."""

import threading
from collections.abc import Sequence

import msgspec
import pytest

from cadenza.core.chat import Media
from cadenza.core.tokens import COUNT_TOKENS_MAX, MESSAGE_OVERHEAD_TOKENS, Tokenizer
from cadenza.routing.prompt import QUICK_BYTES, Character, PromptSize

CHARACTER = Character("Be brief.")
TEXTS = ["hello world", "hello"]
BODY_BYTES = 500


class WatchedTokenizer(Tokenizer):
    """A tokenizer that keeps the thread of each count of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def count_prompt(self, texts: Sequence[str], enough_tokens: int = COUNT_TOKENS_MAX) -> int:
        self.threads.append(threading.get_ident())
        return super().count_prompt(texts, enough_tokens)


@pytest.fixture
def tokenizer() -> WatchedTokenizer:
    tokenizer = WatchedTokenizer()
    tokenizer.load()
    return tokenizer


def size_of(tokenizer: Tokenizer, body_bytes: int = BODY_BYTES) -> PromptSize:
    return PromptSize(tokenizer, CHARACTER, lambda: TEXTS, body_bytes)


def own_count(tokenizer: Tokenizer) -> int:
    return sum(tokenizer.count(text) + MESSAGE_OVERHEAD_TOKENS for text in (CHARACTER.text, *TEXTS))


def test_a_character_is_a_system_message() -> None:
    """Its text is encoded once, as the system message that goes upstream, and its size is that of the message."""
    assert msgspec.json.decode(bytes(CHARACTER.message)) == {"role": "system", "content": "Be brief."}
    assert CHARACTER.size_bytes == len(bytes(CHARACTER.message))


def test_the_bytes_bound_the_tokens_before_they_are_counted(tokenizer: WatchedTokenizer) -> None:
    """The bound is the bytes of the body and of the character, and needs no count."""
    prompt = size_of(tokenizer)
    assert prompt.bound == BODY_BYTES + CHARACTER.size_bytes
    assert not prompt.exact
    assert tokenizer.threads == []


async def test_the_exact_count_is_made_once(tokenizer: WatchedTokenizer) -> None:
    """It counts the character and every text with the overhead of a message."""
    prompt = size_of(tokenizer)
    assert [await prompt.count() for _ in range(3)] == [own_count(tokenizer)] * 3
    assert prompt.exact == own_count(tokenizer)
    assert prompt.bound == BODY_BYTES + CHARACTER.size_bytes
    assert len(tokenizer.threads) == 1


def test_the_length_of_a_prompt_is_found_once(tokenizer: WatchedTokenizer) -> None:
    """A stream is marked by an estimate twice a second, which does not read its messages again."""
    reads = list[list[str]]()

    def read() -> list[str]:
        reads.append(TEXTS)
        return TEXTS

    prompt = PromptSize(tokenizer, CHARACTER, read, BODY_BYTES)
    estimates = {prompt.rough for _ in range(3)}
    prompt.add_texts(("x" * 400,), 400)
    assert estimates < {*estimates, prompt.rough}
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("body_bytes", "is_inline"),
    [(QUICK_BYTES - CHARACTER.size_bytes, True), (QUICK_BYTES - CHARACTER.size_bytes + 1, False)],
)
async def test_a_large_prompt_is_counted_in_a_thread(
    tokenizer: WatchedTokenizer, body_bytes: int, is_inline: bool
) -> None:
    """Up to QUICK_BYTES a prompt is counted on the event loop's thread, above it on another."""
    await size_of(tokenizer, body_bytes).count()
    assert (tokenizer.threads == [threading.get_ident()]) is is_inline


@pytest.mark.parametrize(("chars", "is_inline"), [(QUICK_BYTES, True), (QUICK_BYTES + 1, False)])
async def test_large_texts_that_are_counted_apart_are_counted_in_a_thread(
    tokenizer: WatchedTokenizer, chars: int, is_inline: bool
) -> None:
    """Also if their bytes are a part of the body: a field that a route passes on holds up no other request."""
    prompt = size_of(tokenizer)
    prompt.add_texts(("x" * chars,), 0)
    await prompt.count()
    assert (threading.get_ident() == tokenizer.threads[-1]) is is_inline


async def test_the_tokenizer_is_loaded_in_a_thread() -> None:
    """The first count, which loads the tokenizer, does not block the event loop, however small the prompt is."""
    tokenizer = WatchedTokenizer()
    await size_of(tokenizer).count()
    assert tokenizer.is_loaded
    assert tokenizer.threads != [threading.get_ident()]


async def test_credit_is_held_for_what_a_provider_may_count() -> None:
    """Before the count it is the bound; after it, the text and the high end for files. Never more than the window."""
    media = Media(size_bytes=1_000, tokens=100, tokens_held=2_000, tokens_max=5_000)
    prompt = PromptSize(Tokenizer(), CHARACTER, lambda: TEXTS, 2_000, media)
    assert prompt.to_hold(1_000_000) == prompt.bound == CHARACTER.size_bytes + 1_000 + 5_000
    assert prompt.to_hold(4_000) == 4_000
    tokens = await prompt.count()
    assert prompt.to_hold(1_000_000) == tokens + 1_900
    assert prompt.to_hold(1_500) == 1_500


def test_the_estimate_of_added_texts_is_the_same_each_time() -> None:
    """A stream is marked twice a second; what grounding added is estimated once, not once more with each mark."""
    prompt = size_of(Tokenizer())
    prompt.add_texts(("x" * 4000,), 4000)
    assert len({prompt.rough for _ in range(3)}) == 1
