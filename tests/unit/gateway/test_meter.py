"""The counts of one reply: the upstream's last report, our own count, and corrections of what cannot be true."""

import asyncio
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import Media
from cadenza.core.faults import FaultKind
from cadenza.core.records import OUTPUT_TOKENS_MAX, ReplyResult, Usage
from cadenza.core.tokens import CHARS_PER_TOKEN, TEMPLATE_TOKENS_MAX, Tokenizer
from cadenza.gateway.meter import KEPT_CHARS_MAX, TAIL_CHARS_MAX, UNCOUNTED_CHARS_MAX, UsageMeter
from cadenza.routing.prompt import PromptSize
from cadenza.upstreams.base import Fault, Piece
from tests.unit.gateway.prompts import NO_CHARACTER, TOKENIZER, prompt_of

PROMPT_TOKENS = 17
PROMPT_BYTES = 200
PROMPT_MAX = PROMPT_BYTES + TEMPLATE_TOKENS_MAX
LIMIT = 100
WINDOW = 10_000


def meter_of(*pieces: Piece, limit: int = LIMIT, tokenizer: Tokenizer = TOKENIZER) -> UsageMeter:
    """A meter that took these pieces and delivered their text."""
    prompt = prompt_of(PROMPT_TOKENS, PROMPT_BYTES, tokenizer)
    meter = UsageMeter(prompt, limit)
    meter.bound(WINDOW)
    for piece in pieces:
        meter.take(piece)
        if piece.content:
            meter.deliver(piece.content)
    return meter


async def result_of(*pieces: Piece, limit: int = LIMIT, fault: Fault | None = None) -> ReplyResult:
    """The result of a stream, with our own count where it is needed."""
    meter = meter_of(*pieces, limit=limit)
    if meter.needs_count:
        await meter.count()
    return meter.result(fault)


async def test_the_count_grows_with_every_delivery() -> None:
    """The ledger's marks are taken from it."""
    meter = meter_of()
    meter.deliver("hello world")
    assert meter.has_delivered
    assert await meter.count() == Usage(PROMPT_TOKENS, 2, estimated=True)
    meter.deliver(" and more")
    assert await meter.count() == Usage(PROMPT_TOKENS, 2 + TOKENIZER.count(" and more"), estimated=True)


async def test_a_whole_reply_is_counted_before_it_is_delivered() -> None:
    """The count of its text is the result, within the limit, and does not make it delivered."""
    meter = meter_of(Piece(finish_reason="stop"), limit=3)
    await meter.count_whole("hello world")
    assert meter.result() == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), "stop")
    await meter.count_whole("hello world and then some")
    assert meter.result() == ReplyResult(Usage(PROMPT_TOKENS, 3, estimated=True), "stop")
    assert not meter.has_delivered


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
FRAGMENTS = ["one two three ", "\n\n", "wo", "rds of a ", "   ", "long", "est", " an", "swer, 12", "345 é", "🎼"]


@given(st.lists(st.one_of(words, st.sampled_from(FRAGMENTS)), min_size=1, max_size=40), st.integers(1, 2000), st.data())
def test_the_count_is_that_of_the_whole_text(texts: list[str], times: int, data: st.DataObject) -> None:
    """However a text is split, however often it is counted in between and however long it is, its count is exact."""
    TOKENIZER.load()
    texts, asked = texts * times, data.draw(st.sets(st.integers(0, len(texts) * times), max_size=5))

    async def count() -> int:
        meter, counted = meter_of(limit=OUTPUT_TOKENS_MAX), 0
        for number, text in enumerate(texts):
            meter.deliver(text)
            if number in asked or number == len(texts) - 1:
                counted = (await meter.count()).completion_tokens
        return counted

    whole = "".join(texts)
    counted = asyncio.run(count())
    if longest_word(whole) <= TAIL_CHARS_MAX:
        assert counted == min(TOKENIZER.count(whole), OUTPUT_TOKENS_MAX)


def longest_word(text: str) -> int:
    """The longest part between two places where a text may be split."""
    return max(map(len, re.split(r"(?<=\S)(?= )", text)))


@pytest.mark.parametrize("text", ["many words of it", "x", "\n"], ids=["words", "no space", "lines"])
async def test_only_the_end_of_a_long_answer_is_kept(text: str) -> None:
    """Once the tokenizer is loaded, an answer of many megabytes takes no more memory than one of a few pages."""
    TOKENIZER.load()
    meter = meter_of()
    text *= 1000 // len(text)
    for _ in range(100):
        meter.deliver(text)
    tracemalloc.start()
    try:
        for number in range(2000):
            meter.deliver(f"{text}{number}")
        kept_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < most_bytes < 40 * UNCOUNTED_CHARS_MAX


async def test_a_delivery_does_not_load_the_tokenizer() -> None:
    """However long the answer, the event loop never waits for the load; the first count makes up for it."""
    tokenizer = Tokenizer()
    meter = meter_of(limit=OUTPUT_TOKENS_MAX, tokenizer=tokenizer)
    for _ in range(3):
        meter.deliver(" a" * UNCOUNTED_CHARS_MAX)
    assert not tokenizer.is_loaded
    assert (await meter.count()).completion_tokens == 3 * UNCOUNTED_CHARS_MAX
    assert tokenizer.is_loaded


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, LIMIT))
def test_progress_is_estimated_without_the_tokenizer(text: str, limit: int) -> None:
    """A mark loads no tokenizer, and is of no more tokens than credit was held for."""
    tokenizer = Tokenizer()
    prompt = PromptSize(tokenizer, NO_CHARACTER, lambda: [text], len(text.encode()))
    meter = UsageMeter(prompt, limit)
    meter.deliver(text)
    progress = asyncio.run(meter.progress())
    assert not tokenizer.is_loaded
    assert progress.prompt_tokens <= prompt.to_hold(10**9)
    assert 1 <= progress.completion_tokens <= limit
    assert progress.completion_tokens <= max(1, len(text) // CHARS_PER_TOKEN)
    assert progress.estimated


async def test_progress_of_a_long_stream_is_counted() -> None:
    """A stream that keeps much text has the tokenizer loaded, and then keeps only its end."""
    tokenizer = Tokenizer()
    meter = meter_of(limit=OUTPUT_TOKENS_MAX, tokenizer=tokenizer)
    meter.deliver(" a" * KEPT_CHARS_MAX)
    assert await meter.progress() == Usage(PROMPT_TOKENS, KEPT_CHARS_MAX, estimated=True)
    assert tokenizer.is_loaded


@pytest.mark.parametrize(
    ("reported", "corrected"),
    [
        (Usage(30, LIMIT + 1), Usage(30, LIMIT)),
        (Usage(30, 10**11, 3), Usage(30, LIMIT, 3)),
        (Usage(PROMPT_MAX + 1, 5, 7), Usage(PROMPT_TOKENS, 5, estimated=True)),
    ],
)
async def test_counts_that_cannot_be_true_are_corrected(reported: Usage, corrected: Usage) -> None:
    """More output than was allowed, or more prompt than was sent, is not charged, and the result is doubtful."""
    assert await result_of(Piece("hi", usage=reported)) == ReplyResult(corrected, None, is_doubtful=True)


@pytest.mark.parametrize(
    ("prompt_tokens", "needs_count"), [(0, False), (PROMPT_MAX, False), (PROMPT_MAX + 1, True), (1 << 39, True)]
)
def test_a_count_is_needed_where_the_reported_prompt_cannot_be_true(prompt_tokens: int, needs_count: bool) -> None:
    """A report is enough where nothing of our own is needed to correct it."""
    assert meter_of(Piece(usage=Usage(prompt_tokens, 5))).needs_count is needs_count


async def test_our_own_count_is_never_above_the_limit() -> None:
    """A tokenizer that differs from the upstream's charges no more than was allowed, and casts no doubt on it."""
    result = await result_of(Piece("hello world and then some"), limit=2)
    assert result == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), None)


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_before_anything_was_delivered_is_free(kind: FaultKind) -> None:
    """The result names the fault, and is free whatever the upstream reported."""
    result = meter_of(Piece(usage=Usage(9, 3))).result(Fault(kind))
    assert (result.fault, result.is_free) == (kind.value, True)


def test_an_empty_reply_without_a_fault_is_not_free() -> None:
    """A model that finished and said nothing has still read its prompt."""
    assert not meter_of(Piece(finish_reason="stop")).result().is_free


async def test_a_broken_reply_has_the_cached_tokens_of_its_prompt() -> None:
    """The upstream said how much of the prompt it had cached before the reply broke off: that part costs less."""
    usage = await meter_of(Piece("hello world", usage=Usage(30, 9, cached_tokens=20))).count_delivered()
    assert usage == Usage(30, 2, cached_tokens=20, estimated=True)


@pytest.mark.parametrize(("said", "is_believed"), [(2 * WINDOW + TEMPLATE_TOKENS_MAX, True), (3 * WINDOW, False)])
async def test_a_count_far_beyond_the_window_is_not_believed(said: int, is_believed: bool) -> None:
    """The route accepted the prompt, so it is no longer than the window: our own count is taken."""
    prompt = prompt_of(PROMPT_TOKENS, 10**6)
    meter = UsageMeter(prompt, LIMIT)
    meter.bound(WINDOW)
    meter.take(Piece(finish_reason="stop", usage=Usage(said, 5)))
    assert meter.needs_count is not is_believed
    await meter.count()
    result = meter.result()
    assert result.usage.prompt_tokens == (said if is_believed else PROMPT_TOKENS)
    assert (result.usage.estimated, result.is_doubtful) == (not is_believed, not is_believed)


def test_the_larger_window_of_a_continued_reply_counts() -> None:
    """The first route counted the prompt, and the second may have a smaller window."""
    prompt = prompt_of(PROMPT_TOKENS, 10**6)
    meter = UsageMeter(prompt, LIMIT)
    meter.take(Piece(finish_reason="stop", usage=Usage(15 * WINDOW, 5)))
    for window_tokens, needs_count in ((WINDOW, True), (10 * WINDOW, False), (WINDOW, False)):
        meter.bound(window_tokens)
        assert meter.needs_count is needs_count


def test_an_upstream_may_count_more_for_images_than_was_held() -> None:
    """Models differ much about images: a count is believed up to a multiple of what we expect at most."""
    media = Media(size_bytes=1_000, tokens=1_024, tokens_held=1_024, tokens_max=8_192, doubtful_tokens=8_192)
    meter = UsageMeter(PromptSize(TOKENIZER, NO_CHARACTER, lambda: ["hi"], 2_000, media), LIMIT)
    meter.bound(1_000_000)
    assert meter.believable_tokens == NO_CHARACTER.size_bytes + 1_000 + 8 * 8_192
