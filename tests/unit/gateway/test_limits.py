"""A rate is told in the headers of a reply, and a slot is given back in every ending that there is."""

import asyncio
import re

import pytest

from cadenza.core.errors import RateLimited
from cadenza.core.rates import Rate, Ticket
from cadenza.gateway.limits import SATURATED_RETRY_S, rate_lines, refusal, slot
from cadenza.gateway.shared import Slots
from cadenza.observe import Metrics
from tests.unit.gateway.clients import let_tasks_run


@pytest.mark.parametrize(
    ("reset_ns", "told"),
    [
        (1, "1ms"),
        (1_000_000, "1ms"),
        (1_000_001, "2ms"),
        (120_000_000, "120ms"),
        (999_000_000, "999ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (1_000_000_001, "1.001s"),
        (10_020_000_000, "10.02s"),
        (100_000_000_000, "100s"),
        (3_600_000_000_000, "3600s"),
    ],
)
def test_a_rate_is_told(reset_ns: int, told: str) -> None:
    """The limit, what remains, and the time until all of it is there again, never less than the true one."""
    lines = rate_lines(Ticket(is_granted=True, limit=20, remaining=7, reset_ns=reset_ns))
    assert lines.decode().splitlines(keepends=True) == [
        "x-ratelimit-limit-requests: 20\r\n",
        "x-ratelimit-remaining-requests: 7\r\n",
        f"x-ratelimit-reset-requests: {told}\r\n",
    ]


@pytest.mark.parametrize(
    ("wait_ns", "wait_s", "wait_ms"),
    [
        (1, 1, 1),
        (999_000_001, 1, 1000),
        (1_000_000_000, 1, 1000),
        (1_000_000_001, 2, 1001),
        (90_500_000_000, 91, 90500),
    ],
)
def test_a_refusal_says_how_long_to_wait(wait_ns: int, wait_s: int, wait_ms: int) -> None:
    """In whole seconds and in milliseconds, both rounded up; the sentence says what the key may do."""
    ticket = Ticket(is_granted=False, limit=20, remaining=0, reset_ns=wait_ns, wait_ns=wait_ns)
    refused = refusal(ticket, Rate(per_s=2.5, burst=20))
    assert dict(refused.headers) == {b"retry-after": b"%d" % wait_s, b"retry-after-ms": b"%d" % wait_ms}
    assert re.search(r"2\.5 requests a second.* 20 at once", refused.message)


async def test_a_slot_is_held_for_as_long_as_the_block() -> None:
    """It is taken at its beginning and free after its end."""
    slots, metrics = Slots(1), Metrics()
    async with slot(slots, "key_a", metrics):
        assert slots.shares.held_by("key_a") == 1
    assert slots.shares.taken == 0


@pytest.mark.parametrize("error", [ValueError, RateLimited("Busy.", 1.0), asyncio.CancelledError, KeyboardInterrupt])
async def test_a_slot_is_given_back_after_an_error(error: BaseException | type[BaseException]) -> None:
    """Whatever is raised in the block comes out of it, and the slot is free."""
    slots, metrics = Slots(1), Metrics()
    with pytest.raises(error if isinstance(error, type) else type(error)):
        async with slot(slots, "key_a", metrics):
            raise error
    assert slots.shares.taken == 0


async def test_a_slot_is_given_back_by_a_task_that_is_cancelled() -> None:
    """A task that is cancelled in its block, or while it waits for a slot, leaves none taken."""
    slots, metrics = Slots(1, wait_s=60.0), Metrics()

    async def stay(key: str) -> None:
        async with slot(slots, key, metrics):
            await asyncio.Event().wait()

    inside, waiting = asyncio.create_task(stay("key_a")), asyncio.create_task(stay("key_b"))
    await let_tasks_run()
    assert (slots.shares.held_by("key_a"), slots.shares.held_by("key_b")) == (1, 0)
    waiting.cancel()
    inside.cancel()
    await asyncio.gather(inside, waiting, return_exceptions=True)
    assert (inside.cancelled(), waiting.cancelled(), slots.shares.taken) == (True, True, 0)


async def test_no_slot_is_a_429_that_is_counted() -> None:
    """Where there is no room within a moment the block is not entered, and the refusal says when to come back."""
    slots, metrics = Slots(1, wait_s=0.001), Metrics()
    async with slot(slots, "key_a", metrics):
        with pytest.raises(RateLimited) as refused:
            async with slot(slots, "key_b", metrics):
                raise AssertionError
        assert slots.shares.held_by("key_b") == 0
    assert int(dict(refused.value.headers)[b"retry-after-ms"]) == SATURATED_RETRY_S * 1000
    assert metrics.registry.get_sample_value("cadenza_refused_total", {"reason": "slots"}) == 1
    assert slots.shares.taken == 0
