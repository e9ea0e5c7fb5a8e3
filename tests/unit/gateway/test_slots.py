"""Slots: fair between keys, and never lost, however the wait for one or the request that has one ends."""

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from cadenza.core.errors import RateLimited
from cadenza.gateway.slots import SATURATED_RETRY_S, SLOT_WAIT_S, Slots, wait_for_slot
from cadenza.observe import Metrics
from tests.unit.gateway.client import WAIT_S, let_tasks_run

LONG_S = 60.0  # longer than any test: no waiter gives up


async def full(*holders: str, wait_s: float = LONG_S) -> Slots:
    """Slots that are all taken by these keys."""
    slots = Slots(len(holders), wait_s, wait_s)
    assert all([await slots.enter(key) for key in holders])
    return slots


async def line_up(slots: Slots, *keys: str) -> list[asyncio.Task[bool]]:
    """Tasks that wait for a slot, in this order."""
    tasks = [asyncio.create_task(slots.enter(key)) for key in keys]
    await let_tasks_run()
    return tasks


async def check_all_free(slots: Slots, limit: int) -> None:
    """No slot is taken, and all of them can be."""
    assert slots.taken == 0
    assert [await slots.enter(f"key_new_{number}") for number in range(limit)] == [True] * limit


async def test_the_wait_for_a_slot_is_bounded() -> None:
    """A request that finds no slot is refused after the wait, not at once."""
    slots = await full("key_a", "key_b", wait_s=SLOT_WAIT_S)
    started_s = time.perf_counter()
    async with asyncio.timeout(WAIT_S):
        assert not await slots.enter("key_c")
    assert time.perf_counter() - started_s >= 0.9 * SLOT_WAIT_S
    assert slots.taken == 2


async def test_a_free_slot_goes_to_the_key_with_the_fewest() -> None:
    """Whenever it began to wait."""
    slots = await full("key_a", "key_a", "key_a", "key_b")
    waiters = await line_up(slots, "key_a", "key_b", "key_c")
    seen = []
    for leaving in ("key_a", "key_c", "key_b"):
        slots.leave(leaving)
        await let_tasks_run()
        seen.append([waiter.done() for waiter in waiters])
    assert seen == [[False, False, True], [False, True, True], [True, True, True]]


async def test_no_more_requests_wait_than_there_are_slots() -> None:
    """Where as many wait as there are slots, the next one of a key that has its share is refused at once."""
    slots = await full("key_a", "key_a")
    waiters = await line_up(slots, "key_a", "key_a")
    async with asyncio.timeout(WAIT_S):
        assert not await slots.enter("key_a")
    assert [waiter.done() for waiter in waiters] == [False, False]
    for _ in range(2):
        slots.leave("key_a")
    assert await asyncio.gather(*waiters) == [True, True]


async def test_a_key_below_its_share_waits_longer_and_is_next() -> None:
    """A greedy key fills the slots and the line; a modest one still waits, and gets the first slot that is free."""
    slots = Slots(4, wait_s=0.0, share_wait_s=LONG_S)
    assert all([await slots.enter("greedy") for _ in range(4)])
    await line_up(slots, *["greedy"] * 4)
    modest, third = await line_up(slots, "modest", "modest")
    async with asyncio.timeout(WAIT_S):
        assert not await slots.enter("modest")  # a third slot would be more than its share
        assert not await slots.enter("greedy")
    slots.leave("greedy")
    assert await modest
    slots.leave("greedy")
    assert await third


Disturb = Callable[[Slots, asyncio.Task[bool]], None]


def cancel_before(slots: Slots, waiter: asyncio.Task[bool]) -> None:
    waiter.cancel()


def cancel_just_before(slots: Slots, waiter: asyncio.Task[bool]) -> None:
    waiter.cancel()
    slots.leave("key_a")


def cancel_just_after(slots: Slots, waiter: asyncio.Task[bool]) -> None:
    slots.leave("key_a")
    waiter.cancel()


@pytest.mark.parametrize("disturb", [cancel_before, cancel_just_before, cancel_just_after])
async def test_cancelling_a_waiter_loses_no_slot(disturb: Disturb) -> None:
    """Cancelled before it gets a slot, or in the same instant, the waiter ends and the next one enters."""
    slots = await full("key_a", "key_a")
    first, second = await line_up(slots, "key_b", "key_c")
    disturb(slots, first)
    with pytest.raises(asyncio.CancelledError):
        await first
    if disturb is cancel_before:
        assert not second.done()
        slots.leave("key_a")
    assert await asyncio.wait_for(second, WAIT_S)
    assert slots.taken == 2
    slots.leave("key_a")
    slots.leave("key_c")
    await check_all_free(slots, 2)


async def test_a_slot_that_becomes_free_when_the_wait_ends_is_not_lost() -> None:
    """Whether the waiter still got it or had given up, it is counted once."""
    for _ in range(50):
        slots, left = await full("key_a", wait_s=0.001), asyncio.Event()

        def leave(slots: Slots = slots, left: asyncio.Event = left) -> None:
            slots.leave("key_a")
            left.set()

        asyncio.get_running_loop().call_later(0.001, leave)
        has_slot = await asyncio.wait_for(slots.enter("key_b"), WAIT_S)
        await left.wait()
        assert slots.taken == int(has_slot)


async def test_a_higher_limit_lets_waiters_in() -> None:
    """New slots go to those that wait, at once."""
    slots = await full("key_a")
    (first,) = await line_up(slots, "key_b")
    slots.change_limit(2)
    assert await asyncio.wait_for(first, WAIT_S)
    assert slots.taken == 2


async def test_a_key_that_was_refused_comes_before_one_that_has_its_share() -> None:
    """The next free slot is kept from the key that has its share, and is there for the other."""
    slots = await full("key_a", "key_a", "key_a", "key_a", wait_s=0.001)
    assert not await slots.enter("key_b")
    slots.leave("key_a")
    assert not await slots.enter("key_a")
    assert await slots.enter("key_b")


@pytest.mark.parametrize("seed", range(5))
async def test_no_slot_is_lost_in_a_crowd(seed: int) -> None:
    """Hundreds enter, wait, give up, are cancelled and leave at random: the limit holds, and all slots end free."""
    chance, slots, most = random.Random(seed), Slots(4, wait_s=0.003), 0

    async def visit(key: str) -> None:
        nonlocal most
        if await slots.enter(key):
            try:
                most = max(most, slots.taken)
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.002]))
            finally:
                slots.leave(key)

    visits = [asyncio.create_task(visit(f"key_{chance.randrange(5)}")) for _ in range(300)]
    while not all(one.done() for one in visits):
        await asyncio.sleep(chance.choice([0, 0.001]))
        chance.choice(visits).cancel()
        slots.change_limit(chance.choice([3, 4, 4]))
    assert 1 <= most <= 4
    slots.change_limit(4)
    await check_all_free(slots, 4)


async def test_a_request_without_a_slot_is_refused_and_counted() -> None:
    """It takes none, and the 429 says when to retry."""
    slots, metrics = Slots(1, wait_s=0.001), Metrics()
    await wait_for_slot(slots, "key_a", metrics)
    with pytest.raises(RateLimited) as refused:
        await wait_for_slot(slots, "key_b", metrics)
    assert slots.taken == 1
    slots.leave("key_a")
    assert int(dict(refused.value.headers)[b"retry-after-ms"]) == SATURATED_RETRY_S * 1000
    assert metrics.registry.get_sample_value("cadenza_refused_total", {"reason": "slots"}) == 1
    assert slots.taken == 0


async def test_a_free_slot_is_given_at_once() -> None:
    """Up to the limit, nobody waits."""
    slots = Slots(3, LONG_S, LONG_S)
    async with asyncio.timeout(WAIT_S):
        assert [await slots.enter("key_a") for _ in range(3)] == [True, True, True]
    assert slots.taken == 3


async def test_a_slot_that_becomes_free_within_the_wait_is_given() -> None:
    """A waiter enters as soon as another request leaves."""
    slots = await full("key_a")
    (waiter,) = await line_up(slots, "key_b")
    assert not waiter.done()
    slots.leave("key_a")
    assert await asyncio.wait_for(waiter, WAIT_S)
    assert slots.taken == 1


async def test_among_equal_keys_the_first_waiter_is_next() -> None:
    """Keys that hold the same number of slots enter in the order in which they came."""
    slots = await full("key_a", "key_a", "key_a")
    waiters = await line_up(slots, "key_b", "key_c", "key_d")
    for number in range(3):
        slots.leave("key_a")
        await let_tasks_run()
        assert [waiter.done() for waiter in waiters] == [place <= number for place in range(3)]


async def test_a_cancellation_that_comes_too_late_changes_nothing() -> None:
    """A waiter that has entered keeps its slot until it leaves."""
    slots = await full("key_a")
    (waiter,) = await line_up(slots, "key_b")
    slots.leave("key_a")
    assert await waiter
    assert not waiter.cancel()
    assert slots.taken == 1
    slots.leave("key_b")
    await check_all_free(slots, 1)


async def test_a_lower_limit_lets_nobody_in_until_there_is_room() -> None:
    """Requests that run go on; a slot above the new limit is not given again."""
    slots = await full("key_a", "key_a", "key_a")
    slots.change_limit(1)
    (waiter,) = await line_up(slots, "key_b")
    for _ in range(2):
        slots.leave("key_a")
        await let_tasks_run()
        assert not waiter.done()
    slots.leave("key_a")
    assert await asyncio.wait_for(waiter, WAIT_S)


async def test_a_cancelled_task_gives_back_its_slot() -> None:
    """Whether it is cancelled in its block or while it waits for a slot."""
    slots, metrics = Slots(1, wait_s=LONG_S), Metrics()

    async def stay(key: str) -> None:
        await wait_for_slot(slots, key, metrics)
        try:
            await asyncio.Event().wait()
        finally:
            slots.leave(key)

    inside, waiting = asyncio.create_task(stay("key_a")), asyncio.create_task(stay("key_b"))
    await let_tasks_run()
    assert slots.taken == 1
    waiting.cancel()
    inside.cancel()
    await asyncio.gather(inside, waiting, return_exceptions=True)
    assert (inside.cancelled(), waiting.cancelled(), slots.taken) == (True, True, 0)
