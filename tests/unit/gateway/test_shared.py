"""What the requests of a process share: the rates of keys, and slots that nobody loses however its waiting ends."""

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from cadenza.core.rates import Rate
from cadenza.gateway.shared import SLOT_WAIT_S, SWEEP_EVERY, Rates, Slots
from tests.unit.gateway.clients import let_tasks_run

LONG_S = 60.0  # longer than any test: nobody gives up
SLOW = Rate(per_s=0.001, burst=2)
SWIFT = Rate(per_s=1e9, burst=1)  # whole again before the next look at the clock


def full(limit: int, *holders: str, wait_s: float = LONG_S) -> Slots:
    """Slots that these have all of."""
    slots = Slots(limit, wait_s)
    assert len(holders) == limit
    assert all(slots.shares.take(key, time.monotonic()) for key in holders)
    return slots


async def line_up(slots: Slots, *keys: str) -> list[asyncio.Task[bool]]:
    """Tasks that wait for a slot, in this order."""
    tasks = [asyncio.create_task(slots.enter(key)) for key in keys]
    await let_tasks_run()
    return tasks


async def check_all_free(slots: Slots) -> None:
    """Nothing is held, and everyone who comes finds room."""
    assert slots.shares.taken == 0
    assert not slots._waiting
    assert [await slots.enter("key_last") for _ in range(slots.shares.limit)] == [True] * slots.shares.limit


def test_keys_do_not_disturb_each_other() -> None:
    """One key uses up its rate and is refused; the other has all of its own."""
    rates = Rates()
    assert [rates.take("key_a", SLOW).is_granted for _ in range(4)] == [True, True, False, False]
    assert [rates.take("key_b", SLOW).remaining for _ in range(2)] == [1, 0]


def test_a_key_is_granted_after_the_wait_that_it_was_told() -> None:
    """By the real clock too, who waits exactly so long is let in."""
    rates, rate = Rates(), Rate(per_s=50.0, burst=1)
    assert rates.take("key_a", rate).is_granted
    refused = rates.take("key_a", rate)
    assert not refused.is_granted
    time.sleep(refused.wait_s)
    assert rates.take("key_a", rate).is_granted


def test_keys_whose_burst_is_whole_are_forgotten() -> None:
    """However many keys come by, no more are kept than the sweep allows beside those that still owe."""
    rates = Rates()
    for number in range(3 * SWEEP_EVERY):
        rates.take(f"key_{number}", SWIFT)
        assert len(rates._whole_at_ns) <= SWEEP_EVERY
    assert rates.take("key_0", SWIFT).is_granted


def test_a_sweep_forgives_nobody() -> None:
    """A key that has used up its rate is still refused after thousands of others came by."""
    rates = Rates()
    for _ in range(SLOW.burst):
        rates.take("key_a", SLOW)
    for number in range(2 * SWEEP_EVERY):
        rates.take(f"key_{number}", SWIFT)
    assert not rates.take("key_a", SLOW).is_granted


async def test_a_free_slot_is_had_at_once() -> None:
    """Up to the limit everyone enters without waiting."""
    slots = Slots(3, LONG_S)
    async with asyncio.timeout(5):
        assert [await slots.enter("key_a") for _ in range(3)] == [True, True, True]
    assert slots.shares.taken == 3


async def test_the_wait_for_a_slot_is_short() -> None:
    """Who finds no slot is refused after a moment: neither at once nor much later."""
    slots = full(2, "key_a", "key_b", wait_s=SLOT_WAIT_S)
    taken_s = []
    for _ in range(5):
        started_s = time.perf_counter()
        assert not await slots.enter("key_c")
        taken_s.append(time.perf_counter() - started_s)
    assert min(taken_s) >= 0.9 * SLOT_WAIT_S
    assert sorted(taken_s)[2] < SLOT_WAIT_S + 0.25
    assert not slots._waiting


async def test_a_slot_that_comes_free_within_the_wait_is_had() -> None:
    """Who waits enters as soon as another leaves."""
    slots = full(1, "key_a")
    (waiter,) = await line_up(slots, "key_b")
    assert not waiter.done()
    slots.leave("key_a")
    assert await asyncio.wait_for(waiter, 5)
    assert (slots.shares.held_by("key_a"), slots.shares.held_by("key_b")) == (0, 1)


async def test_a_freed_slot_goes_to_who_has_fewest() -> None:
    """Of those who wait, the key with the fewest slots is next, whenever it came."""
    slots = full(4, "key_a", "key_a", "key_a", "key_b")
    waiters = await line_up(slots, "key_a", "key_b", "key_c")
    seen = []
    for leaving in ("key_a", "key_c", "key_b"):
        slots.leave(leaving)
        await let_tasks_run()
        seen.append([waiter.done() for waiter in waiters])
    assert seen == [[False, False, True], [False, True, True], [True, True, True]]


async def test_among_equals_the_first_to_come_is_next() -> None:
    """Keys that hold the same number of slots are let in in the order in which they came."""
    slots = full(3, "key_a", "key_a", "key_a")
    waiters = await line_up(slots, "key_b", "key_c", "key_d")
    for number in range(3):
        slots.leave("key_a")
        await let_tasks_run()
        assert [waiter.done() for waiter in waiters] == [place <= number for place in range(3)]


async def test_no_more_wait_than_there_are_slots() -> None:
    """Whoever comes when as many wait as there are slots is refused at once."""
    slots = full(2, "key_a", "key_a")
    waiters = await line_up(slots, "key_b", "key_c")
    async with asyncio.timeout(5):
        assert not await slots.enter("key_d")
    assert [waiter.done() for waiter in waiters] == [False, False]
    for _ in range(2):
        slots.leave("key_a")
    assert await asyncio.gather(*waiters) == [True, True]


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
    """Before the grant, in its instant on either side: the waiter ends cancelled, and who waits behind it gets in."""
    slots = full(2, "key_a", "key_a")
    first, second = await line_up(slots, "key_b", "key_c")
    disturb(slots, first)
    with pytest.raises(asyncio.CancelledError):
        await first
    if slots.shares.held_by("key_a") == 2:
        assert not second.done()
        slots.leave("key_a")
    assert await asyncio.wait_for(second, 5)
    assert (slots.shares.held_by("key_b"), slots.shares.held_by("key_c")) == (0, 1)
    slots.leave("key_a")
    slots.leave("key_c")
    await check_all_free(slots)


async def test_a_cancellation_that_comes_too_late_leaves_the_slot_with_its_owner() -> None:
    """Who was let in and then cancelled has the slot, and gives it back as everyone does."""
    slots = full(1, "key_a")
    (waiter,) = await line_up(slots, "key_b")
    slots.leave("key_a")
    assert await waiter
    assert not waiter.cancel()
    assert slots.shares.held_by("key_b") == 1
    slots.leave("key_b")
    await check_all_free(slots)


async def test_a_slot_that_comes_free_when_the_wait_ends_is_not_lost() -> None:
    """Whether the waiter still got it or had given up, it is counted once."""
    for _ in range(50):
        slots = full(1, "key_a", wait_s=0.001)
        asyncio.get_running_loop().call_later(0.001, slots.leave, "key_a")
        is_in = await asyncio.wait_for(slots.enter("key_b"), 5)
        await asyncio.sleep(0.001)
        assert slots.shares.held_by("key_b") == slots.shares.taken - slots.shares.held_by("key_a") == int(is_in)


async def test_a_higher_limit_lets_waiters_in() -> None:
    """The new slots go to those who wait, at once."""
    slots = full(1, "key_a")
    (first,) = await line_up(slots, "key_b")
    slots.change_limit(2)
    assert await asyncio.wait_for(first, 5)
    assert slots.shares.taken == 2


async def test_a_lower_limit_lets_nobody_in_until_there_is_room() -> None:
    """Who is in stays in; a slot above the new limit is not handed on."""
    slots = full(3, "key_a", "key_a", "key_a")
    slots.change_limit(1)
    (waiter,) = await line_up(slots, "key_b")
    for _ in range(2):
        slots.leave("key_a")
        await let_tasks_run()
        assert not waiter.done()
    slots.leave("key_a")
    assert await asyncio.wait_for(waiter, 5)


async def test_who_was_refused_comes_before_the_greedy() -> None:
    """After a refusal, the next free slot is kept from a key that has its share, and is there for the other."""
    slots = full(4, "key_a", "key_a", "key_a", "key_a", wait_s=0.001)
    assert not await slots.enter("key_b")
    slots.leave("key_a")
    assert not await slots.enter("key_a")
    assert await slots.enter("key_b")


@pytest.mark.parametrize("seed", range(5))
async def test_no_slot_is_lost_in_a_crowd(seed: int) -> None:
    """Hundreds come, wait, give up, are cancelled and leave at random: never too many are in, and all is free again."""
    chance, slots, most = random.Random(seed), Slots(4, wait_s=0.003), 0

    async def visit(key: str) -> None:
        nonlocal most
        if await slots.enter(key):
            try:
                most = max(most, slots.shares.taken)
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
    slots.shares._wants.clear()
    await check_all_free(slots)
