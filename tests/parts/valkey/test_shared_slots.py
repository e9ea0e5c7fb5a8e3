"""Slots of a fleet by leases: the limit holds, keys are treated fairly, and no slot is lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cadenza.gateway.slots import Slots
from cadenza.parts.valkey.link import ValkeyTiming
from tests.parts.valkey import client
from tests.parts.valkey.conftest import WAIT_S, MakeValkeyState, OpenSlots, enter_all, until, with_slots
from tests.store.forked import Fork, forked
from tests.valkey import Valkey

LEASE = ValkeyTiming(trip_s=30.0, connect_s=30.0, lease_s=4.0)  # a process that gets no core for three seconds keeps it

MakeFleet = Callable[..., Awaitable[list[OpenSlots]]]


@pytest.fixture
def make_fleet(valkey: Valkey, make_valkey_state: MakeValkeyState) -> MakeFleet:
    """Makes the slots of three processes with one limit."""

    async def make(limit: int, wait_s: float = WAIT_S) -> list[OpenSlots]:
        return [(await with_slots(make_valkey_state, valkey.url, limit, wait_s=wait_s))[1] for _ in range(3)]

    return make


@asynccontextmanager
async def holding(url: str, limit: int, count: int, lease_s: float) -> AsyncIterator[Fork]:
    """A process that has so many slots."""
    async with forked(client.hold, url, str(limit), str(count), str(lease_s)) as process:
        await process.hear_word(str(count))
        yield process


async def test_one_process_may_have_every_slot(make_fleet: MakeFleet) -> None:
    """While the others are idle."""
    first, _, third = await make_fleet(20)
    await enter_all(first, "key_a", 20)
    for _ in range(20):
        first.leave("key_a")
    await enter_all(third, "key_b", 20)


async def test_the_last_slots_are_not_kept_by_idle_processes(make_fleet: MakeFleet) -> None:
    """One request after the other finds a slot until all are taken."""
    first, _, _ = await make_fleet(9)
    for number in range(9):
        assert await asyncio.wait_for(first.enter(f"key_{number}"), WAIT_S)


@pytest.mark.parametrize("limit", [1, 2, 7, 40])
async def test_a_storm_over_three_processes_stays_within_the_limit(make_fleet: MakeFleet, limit: int) -> None:
    """Three times fifty tasks enter, wait, are cancelled and leave: never more than the limit, and no slot is lost."""
    fleet, chance = await make_fleet(limit), random.Random(limit)
    inside = most = 0

    async def visit(slots: Slots, key: str) -> None:
        nonlocal inside, most
        for _ in range(4):
            if await slots.enter(key):
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(chance.choice([0, 0.001, 0.003]))
                finally:
                    inside -= 1
                    slots.leave(key)

    tasks = [asyncio.create_task(visit(fleet[n % 3], f"key_{chance.randrange(6)}")) for n in range(150)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.005)
        if most:
            chance.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 1 <= most <= limit
    for slots in fleet:
        keys = [f"key_after_{number}" for number in range(limit)]  # no key that may have to leave slots to others
        assert await asyncio.wait_for(asyncio.gather(*map(slots.enter, keys)), WAIT_S) == [True] * limit
        for key in keys:
            slots.leave(key)


async def test_a_greedy_key_on_one_process_does_not_starve_a_key_on_another(make_fleet: MakeFleet) -> None:
    """A key that fills all slots and waits for more leaves those that become free to a key elsewhere."""
    first, second, _ = await make_fleet(8)
    await enter_all(first, "greedy", 8)
    waiting = [asyncio.create_task(first.enter("greedy")) for _ in range(8)]
    modest = [asyncio.create_task(second.enter("modest")) for _ in range(4)]
    await asyncio.sleep(0.1)
    await until(lambda: first.allowed == 4)  # its process knows of the other key
    for _ in range(4):
        first.leave("greedy")
    assert await asyncio.wait_for(asyncio.gather(*modest), WAIT_S) == [True] * 4
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_slots_that_are_full_everywhere_are_refused_after_the_wait(make_fleet: MakeFleet) -> None:
    """A request that finds no slot in the fleet is refused."""
    first, second, _ = await make_fleet(4, 0.3)
    await enter_all(first, "key_a", 4)
    assert not await asyncio.wait_for(second.enter("key_b"), WAIT_S)


async def test_a_lower_limit_holds_for_all(make_fleet: MakeFleet) -> None:
    """Requests that run go on; no slot above the new limit is given again."""
    fleet = await make_fleet(9, 1.0)
    for slots in fleet:
        await enter_all(slots, "key_a", 3)
    for slots in fleet:
        slots.change_limit(3)
    for slots in fleet[:2]:
        for _ in range(3):
            slots.leave("key_a")
    async with asyncio.timeout(WAIT_S):
        while await fleet[0].enter("key_b"):  # until the processes have heard of it
            fleet[0].leave("key_b")
            await asyncio.sleep(0.01)
    fleet[2].leave("key_a")
    await enter_all(fleet[0], "key_b", 1)


async def test_a_higher_limit_lets_waiters_in(make_fleet: MakeFleet) -> None:
    """On whatever process they wait."""
    first, second, third = await make_fleet(1)
    await enter_all(first, "key_a", 1)
    waiters = [asyncio.create_task(second.enter("key_b")), asyncio.create_task(second.enter("key_c"))]
    for slots in (first, second, third):
        slots.change_limit(3)
    assert await asyncio.wait_for(asyncio.gather(*waiters), WAIT_S) == [True, True]


async def test_shares_go_by_keys(valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """If all slots are wanted, a process with three keys gets three times as many as one with one key."""
    _, first = await with_slots(make_valkey_state, valkey.url, 40, wait_s=0.2)
    _, second = await with_slots(make_valkey_state, valkey.url, 40, wait_s=0.2)
    enough = asyncio.Event()

    async def visit(slots: Slots, key: str) -> None:
        while not enough.is_set():
            has_slot = await slots.enter(key)
            await asyncio.sleep(0.01)
            if has_slot:
                slots.leave(key)

    tasks = [asyncio.create_task(visit(first, f"key_{number % 3}")) for number in range(60)]
    tasks += [asyncio.create_task(visit(second, "key_x")) for _ in range(60)]

    async def is_three_times(count: int) -> bool:
        samples = list[tuple[int, int]]()
        while len(samples) < count:
            await asyncio.sleep(0.01)
            samples.append((first.taken, second.taken))
        ones, twos = map(sum, zip(*samples, strict=True))
        return 2 * twos < ones < 4.5 * twos

    async with asyncio.timeout(WAIT_S):
        while not await is_three_times(50):  # until both have heard of each other
            pass
    assert await is_three_times(100)
    enough.set()
    await asyncio.gather(*tasks)


async def test_a_process_that_stops_gives_back_its_slots(valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """At once, and not when its lease lapses."""
    _, slots = await with_slots(make_valkey_state, valkey.url, 10)
    state, others = await with_slots(make_valkey_state, valkey.url, 10)
    await enter_all(others, "key_a", 6)
    await state.stop()
    await enter_all(slots, "key_b", 10)


@pytest.mark.slow(reason="waits until a lease lapses")
async def test_a_lease_lapses_after_a_kill(valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """The slots of a killed process are free for others after the time of a lease, and not before it was killed."""
    async with holding(valkey.url, 10, 7, LEASE.lease_s) as process:
        _, slots = await with_slots(make_valkey_state, valkey.url, 10, LEASE)
        await enter_all(slots, "key_a", 3)
        fourth = asyncio.create_task(slots.enter("key_a"))
        await asyncio.sleep(1.25 * LEASE.lease_s)
        assert not fourth.done()
        await process.kill()
        assert await asyncio.wait_for(fourth, WAIT_S)
        await enter_all(slots, "key_a", 6)
