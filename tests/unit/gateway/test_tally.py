"""The counts of one reply: the upstream's last word, our own count beside it, and what can be true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.records import Outcome, Usage
from cadenza.core.tokens import TEMPLATE_TOKENS_MAX, count_tokens
from cadenza.gateway.tally import Tally
from cadenza.upstreams.base import Fault, FaultKind, Piece

PROMPT_TOKENS = 17
PROMPT_BYTES = 200
LIMIT = 100


def tally_of(*pieces: Piece, limit: int = LIMIT) -> Tally:
    """A tally that took these pieces and delivered their text."""
    tally = Tally(PROMPT_TOKENS, PROMPT_BYTES)
    tally.output_limit = limit
    for piece in pieces:
        tally.take(piece)
        tally.deliver(piece.content)
    return tally


def test_a_tally_begins_with_the_prompt_alone() -> None:
    """Before anything is delivered our own count is the prompt, and the upstream has said nothing."""
    tally = Tally(PROMPT_TOKENS, PROMPT_BYTES)
    assert tally.so_far() == Usage(PROMPT_TOKENS, 0, estimated=True)
    assert (tally.delivered_tokens, tally.has_counts, tally.finish_reason) == (0, False, None)


def test_delivered_text_is_counted_piece_by_piece() -> None:
    """What the ledger's marks are read from grows with every delivery."""
    tally = Tally(PROMPT_TOKENS, PROMPT_BYTES)
    tally.deliver("hello world")
    assert tally.delivered_tokens == 2
    tally.deliver(" and more")
    assert tally.delivered_tokens == 2 + count_tokens(" and more")


def test_taking_a_piece_is_not_delivering_it() -> None:
    """Content that came from the upstream and did not go out counts for nothing."""
    tally = Tally(PROMPT_TOKENS, PROMPT_BYTES)
    tally.take(Piece("hello world"))
    assert tally.so_far() == Usage(PROMPT_TOKENS, 0, estimated=True)


def test_the_upstream_is_believed_before_our_own_count() -> None:
    """Its usage is the outcome's, whatever we would have counted, and is not an estimate."""
    said = Usage(31, 4, 5, completion_details={"reasoning_tokens": 2})
    outcome = tally_of(Piece("a text of many more tokens than four of them"), Piece(usage=said)).outcome()
    assert outcome == Outcome(said, None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Usage, st.integers(0, 200), st.integers(0, LIMIT)), min_size=1, max_size=6))
def test_the_last_usage_counts_and_nothing_is_summed(said: list[Usage]) -> None:
    """Of any number of counts the last is the outcome."""
    outcome = tally_of(*(Piece("x", usage=usage) for usage in said)).outcome()
    assert outcome.usage == said[-1]


def test_a_piece_without_counts_leaves_the_last_ones() -> None:
    """A usage is not forgotten by what comes after it."""
    tally = tally_of(Piece(usage=Usage(9, 3)), Piece("more"), Piece(finish_reason="stop"))
    assert tally.outcome() == Outcome(Usage(9, 3), "stop")


def test_zero_is_a_count() -> None:
    """An upstream that says zero is not asked twice: nothing is estimated."""
    outcome = tally_of(Piece("some text", usage=Usage(0, 0))).outcome()
    assert outcome.usage == Usage(0, 0, estimated=False)
    assert not outcome.is_doubtful


def test_without_a_usage_our_own_count_is_the_outcome() -> None:
    """Prompt and delivered text, marked as estimated."""
    outcome = tally_of(Piece("hello world", "stop")).outcome()
    assert outcome == Outcome(Usage(PROMPT_TOKENS, 2, estimated=True), "stop")


@pytest.mark.parametrize(
    ("said", "mended"),
    [
        (Usage(30, LIMIT + 1), Usage(30, LIMIT)),
        (Usage(30, 10**11, 3), Usage(30, LIMIT, 3)),
        (Usage(PROMPT_BYTES + TEMPLATE_TOKENS_MAX + 1, 5, 7), Usage(PROMPT_TOKENS, 5, estimated=True)),
    ],
)
def test_counts_that_cannot_be_true_are_mended_and_doubtful(said: Usage, mended: Usage) -> None:
    """More output than was allowed, or more prompt than was sent, is not charged, and is noted."""
    assert tally_of(Piece(usage=said)).outcome() == Outcome(mended, None, is_doubtful=True)


@pytest.mark.parametrize("order", [1, -1])
def test_counts_that_are_none_make_the_reply_doubtful(order: int) -> None:
    """One unreadable usage is noted, whether a good one came before it or after it."""
    pieces = [Piece(usage=Usage(9, 3)), Piece(has_bad_usage=True)][::order]
    assert tally_of(*pieces).outcome() == Outcome(Usage(9, 3), None, is_doubtful=True)


def test_our_own_count_is_never_above_the_limit() -> None:
    """A tokenizer that differs from the upstream's charges no more than was allowed, and stays an estimate."""
    outcome = tally_of(Piece("hello world and then some"), limit=2).outcome()
    assert outcome.usage == Usage(PROMPT_TOKENS, 2, estimated=True)


def test_our_own_count_does_not_cast_doubt_on_the_upstream() -> None:
    """Where the upstream gave no counts, none of its counts can be false."""
    assert not tally_of(Piece("hello world and then some"), limit=2).outcome().is_doubtful


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_before_anything_was_delivered_is_free(kind: FaultKind) -> None:
    """The outcome names the fault, and nothing is charged for it, whatever the upstream had counted."""
    outcome = tally_of(Piece(usage=Usage(9, 3))).outcome(Fault(kind))
    assert (outcome.fault, outcome.is_free) == (kind.value, True)


def test_a_fault_after_a_delivery_is_not_free() -> None:
    """What was delivered is charged by our own count where the upstream gave none."""
    outcome = tally_of(Piece("hello world")).outcome(Fault(FaultKind.CUT))
    assert outcome == Outcome(Usage(PROMPT_TOKENS, 2, estimated=True), None, "cut")


def test_an_empty_reply_without_a_fault_is_not_free() -> None:
    """A model that finished and said nothing has still read its prompt."""
    assert not tally_of(Piece(finish_reason="stop")).outcome().is_free
