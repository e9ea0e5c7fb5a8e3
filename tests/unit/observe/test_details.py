"""Which requests leave details, and how many of them."""

import time

import pytest
from msgspec.structs import replace

from cadenza.core.records import Outcome, RequestStep, Usage
from cadenza.observe.details import ALIKE_MAX, UNCHARGED_S, WAITING_MAX, DetailBuffer

SERVED = Outcome(
    request_id="req_1",
    endpoint="chat",
    status=200,
    duration_ms=1500,
    ended_at=2**60,
    key_id="key_a",
    account_id="acct_a",
    completion_id="chatcmpl-x",
    usage=Usage(9, 3),
    first_byte_ms=400,
)
REFUSED = replace(SERVED, status=429, completion_id="", usage=None, cause="rate")


def test_a_plain_request_leaves_none() -> None:
    """Nor does one without a key: a stranger cannot fill the store."""
    buffer = DetailBuffer()
    for plain in (SERVED, replace(REFUSED, account_id="", key_id="", status=401)):
        buffer.note(plain)
    assert buffer.take() == []


@pytest.mark.parametrize(
    "outcome",
    [
        REFUSED,
        replace(SERVED, status=502),
        replace(SERVED, steps=[RequestStep(3, "failed", "acme/large", "timed_out")]),
        replace(SERVED, first_byte_ms=5_000),
        replace(SERVED, ended_at=time.time_ns() // 1_000_000 - 2_000),
    ],
    ids=["refused", "failed", "retried", "slow to begin", "slow to settle"],
)
def test_what_is_not_plain_is_noted_once(outcome: Outcome) -> None:
    """With the time until its charge was durable, where credit was held."""
    buffer = DetailBuffer()
    buffer.note(outcome)
    [(noted, settle_ms)] = buffer.take()
    assert noted is outcome
    assert (settle_ms is None) == (not outcome.completion_id)
    assert buffer.take() == []


def test_a_client_that_is_refused_again_and_again_leaves_few() -> None:
    """With any number of keys. Each account and each status has its own count, and it begins again after a minute."""
    now_s = [0.0]
    buffer = DetailBuffer(lambda: now_s[0])

    def refuse() -> int:
        for number in range(ALIKE_MAX * 3):
            buffer.note(replace(REFUSED, key_id=f"key_{number}"))
        return len(buffer.take())

    assert refuse() == ALIKE_MAX
    assert refuse() == 0
    buffer.note(replace(REFUSED, account_id="acct_b"))
    buffer.note(replace(REFUSED, status=402))
    assert len(buffer.take()) == 2
    now_s[0] = UNCHARGED_S
    assert (refuse(), refuse()) == (0, ALIKE_MAX)


def test_charged_requests_leave_more() -> None:
    """After each write it begins again: these are paid for."""
    buffer = DetailBuffer()
    for _ in range(2):
        for _ in range(ALIKE_MAX * 3):
            buffer.note(replace(SERVED, first_byte_ms=5_000))
        assert len(buffer.take()) == ALIKE_MAX


def test_what_waits_for_the_store_is_bounded() -> None:
    """While the store is away the oldest are kept: they show how it began."""
    buffer = DetailBuffer()
    for number in range(WAITING_MAX):
        buffer.note(replace(REFUSED, account_id=f"acct_{number}"))
    taken = buffer.take()
    buffer.note(REFUSED)
    buffer.requeue(taken)
    assert buffer.take() == taken
