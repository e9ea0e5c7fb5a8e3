"""The counts of one reply: the upstream's last word, our own count beside it, and what can be true."""

import asyncio
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.records import OUTPUT_TOKENS_MAX, ReplyResult, Usage
from cadenza.core.tokens import TEMPLATE_TOKENS_MAX, count_tokens, load
from cadenza.gateway.meter import TAIL_CHARS_MAX, UNCOUNTED_CHARS_MAX, UsageMeter
from cadenza.upstreams.base import Fault, FaultKind, Piece
from tests.unit.gateway.prompts import prompt_of

PROMPT_TOKENS = 17
PROMPT_BYTES = 200
PROMPT_MAX = PROMPT_BYTES + TEMPLATE_TOKENS_MAX
LIMIT = 100


def tally_of(*pieces: Piece, limit: int = LIMIT) -> UsageMeter:
    """A meter that took these pieces and delivered their text."""
    meter = UsageMeter(prompt_of(PROMPT_TOKENS, PROMPT_BYTES))
    meter.output_limit = limit
    for piece in pieces:
        meter.take(piece)
        if piece.content:
            meter.deliver(piece.content)
    return meter


async def outcome_of(*pieces: Piece, limit: int = LIMIT, fault: Fault | None = None) -> ReplyResult:
    """The outcome of a stream, for which our own count is made where it is needed."""
    meter = tally_of(*pieces, limit=limit)
    if not meter.has_counts:
        await meter.count()
    return meter.outcome(fault)


async def test_a_tally_begins_with_the_prompt_alone() -> None:
    """Before anything is delivered our own count is the prompt, and the upstream has said nothing."""
    meter = UsageMeter(prompt_of(PROMPT_TOKENS))
    assert await meter.count() == Usage(PROMPT_TOKENS, 0, estimated=True)
    assert (meter.has_delivered, meter.has_counts, meter.finish_reason) == (False, False, None)


async def test_delivered_text_is_counted_piece_by_piece() -> None:
    """What the ledger's marks are read from grows with every delivery."""
    meter = UsageMeter(prompt_of(PROMPT_TOKENS))
    meter.deliver("hello world")
    assert meter.has_delivered
    assert await meter.count() == Usage(PROMPT_TOKENS, 2, estimated=True)
    meter.deliver(" and more")
    assert await meter.count() == Usage(PROMPT_TOKENS, 2 + count_tokens(" and more"), estimated=True)


async def test_taking_a_piece_is_not_delivering_it() -> None:
    """Content that came from the upstream and did not go out counts for nothing."""
    meter = UsageMeter(prompt_of(PROMPT_TOKENS))
    meter.take(Piece("hello world"))
    assert await meter.count() == Usage(PROMPT_TOKENS, 0, estimated=True)
    assert not meter.has_delivered


async def test_a_reply_that_was_not_delivered_is_counted_whole() -> None:
    """Our own count of a text is the outcome, within what was allowed, and none of it is delivered by that."""
    meter = tally_of(Piece(finish_reason="stop"), limit=3)
    await meter.count_whole("hello world")
    assert meter.outcome() == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), "stop")
    await meter.count_whole("hello world and then some")
    assert meter.outcome() == ReplyResult(Usage(PROMPT_TOKENS, 3, estimated=True), "stop")
    assert not meter.has_delivered


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
LONG = ["one two three ", "\n\n", "wo", "rds of a ", "   ", "long", "est", " an", "swer, 12", "345 é", "🎼"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(words, st.sampled_from(LONG)), min_size=1, max_size=40), st.integers(1, 2000), st.data())
def test_the_count_is_that_of_the_whole_text(texts: list[str], times: int, data: st.DataObject) -> None:
    """However a text was cut up, whenever it was counted in between and however long it is, its count is exact."""
    load()
    texts, asked = texts * times, data.draw(st.sets(st.integers(0, len(texts) * times), max_size=5))

    async def count() -> list[int]:
        meter, counted = UsageMeter(prompt_of(PROMPT_TOKENS)), list[int]()
        for number, text in enumerate(texts):
            meter.deliver(text)
            if number in asked or number == len(texts) - 1:
                counted.append((await meter.count()).completion_tokens)
        return counted

    *_, last = asyncio.run(count())
    whole = "".join(texts)
    if longest_word(whole) <= TAIL_CHARS_MAX:
        assert last == min(count_tokens(whole), OUTPUT_TOKENS_MAX)


def longest_word(text: str) -> int:
    """Of what lies between two places where a text may be cut."""
    return max(map(len, re.split(r"(?<=\S)(?= )", text)))


@pytest.mark.parametrize("text", ["many words of it", "x", "\n"], ids=["words", "no space", "lines"])
async def test_of_a_long_answer_no_more_than_its_end_is_kept(text: str) -> None:
    """Once the tokenizer is there, an answer of many megabytes takes no more memory than one of a few pages."""
    load()
    meter = UsageMeter(prompt_of(PROMPT_TOKENS))
    text *= 1000 // len(text)
    for _ in range(100):
        meter.deliver(text)
    tracemalloc.start()
    try:
        for number in range(4000):
            meter.deliver(f"{text}{number}")
        kept_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < most_bytes < 40 * UNCOUNTED_CHARS_MAX


async def test_the_upstream_is_believed_before_our_own_count() -> None:
    """Its usage is the outcome's, whatever we would have counted, and is not an estimate."""
    said = Usage(31, 4, 5, completion_details={"reasoning_tokens": 2})
    outcome = await outcome_of(Piece("a text of many more tokens than four of them"), Piece(usage=said))
    assert outcome == ReplyResult(said, None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Usage, st.integers(0, 200), st.integers(0, LIMIT)), min_size=1, max_size=6))
def test_the_last_usage_counts_and_nothing_is_summed(said: list[Usage]) -> None:
    """Of any number of counts the last is the outcome."""
    outcome = tally_of(*(Piece("x", usage=usage) for usage in said)).outcome()
    assert outcome.usage == said[-1]


def test_a_piece_without_counts_leaves_the_last_ones() -> None:
    """A usage is not forgotten by what comes after it."""
    meter = tally_of(Piece(usage=Usage(9, 3)), Piece("more"), Piece(finish_reason="stop"))
    assert meter.outcome() == ReplyResult(Usage(9, 3), "stop")


def test_zero_is_a_count() -> None:
    """An upstream that says zero is not asked twice: nothing is estimated."""
    outcome = tally_of(Piece("some text", usage=Usage(0, 0))).outcome()
    assert outcome.usage == Usage(0, 0, estimated=False)
    assert not outcome.is_doubtful


async def test_without_a_usage_our_own_count_is_the_outcome() -> None:
    """Prompt and delivered text, marked as estimated."""
    outcome = await outcome_of(Piece("hello world", "stop"))
    assert outcome == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), "stop")


@pytest.mark.parametrize(
    ("said", "mended"),
    [
        (Usage(30, LIMIT + 1), Usage(30, LIMIT)),
        (Usage(30, 10**11, 3), Usage(30, LIMIT, 3)),
        (Usage(PROMPT_BYTES + TEMPLATE_TOKENS_MAX + 1, 5, 7), Usage(PROMPT_TOKENS, 5, estimated=True)),
    ],
)
async def test_counts_that_cannot_be_true_are_mended_and_doubtful(said: Usage, mended: Usage) -> None:
    """More output than was allowed, or more prompt than was sent, is not charged, and is noted."""
    assert await outcome_of(Piece("hi", usage=said)) == ReplyResult(mended, None, is_doubtful=True)


@pytest.mark.parametrize(
    ("prompt_tokens", "is_enough"), [(0, True), (PROMPT_MAX, True), (PROMPT_MAX + 1, False), (1 << 39, False)]
)
def test_a_prompt_that_cannot_be_true_is_counted_here(prompt_tokens: int, is_enough: bool) -> None:
    """The upstream's counts are enough only where none of our own is needed to mend them."""
    assert tally_of(Piece(usage=Usage(prompt_tokens, 5))).has_counts is is_enough


@pytest.mark.parametrize("order", [1, -1])
def test_counts_that_are_none_make_the_reply_doubtful(order: int) -> None:
    """One unreadable usage is noted, whether a good one came before it or after it."""
    pieces = [Piece(usage=Usage(9, 3)), Piece(has_bad_usage=True)][::order]
    assert tally_of(*pieces).outcome() == ReplyResult(Usage(9, 3), None, is_doubtful=True)


async def test_our_own_count_is_never_above_the_limit() -> None:
    """A tokenizer that differs from the upstream's charges no more than was allowed, and stays an estimate."""
    outcome = await outcome_of(Piece("hello world and then some"), limit=2)
    assert outcome.usage == Usage(PROMPT_TOKENS, 2, estimated=True)


async def test_our_own_count_does_not_cast_doubt_on_the_upstream() -> None:
    """Where the upstream gave no counts, none of its counts can be false."""
    assert not (await outcome_of(Piece("hello world and then some"), limit=2)).is_doubtful


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_before_anything_was_delivered_is_free(kind: FaultKind) -> None:
    """The outcome names the fault, and nothing is charged for it, whatever the upstream had counted."""
    outcome = tally_of(Piece(usage=Usage(9, 3))).outcome(Fault(kind))
    assert (outcome.fault, outcome.is_free) == (kind.value, True)


async def test_a_fault_after_a_delivery_is_not_free() -> None:
    """What was delivered is charged by our own count where the upstream gave none."""
    outcome = await outcome_of(Piece("hello world"), fault=Fault(FaultKind.TRUNCATED))
    assert outcome == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), None, "truncated")


def test_an_empty_reply_without_a_fault_is_not_free() -> None:
    """A model that finished and said nothing has still read its prompt."""
    assert not tally_of(Piece(finish_reason="stop")).outcome().is_free
