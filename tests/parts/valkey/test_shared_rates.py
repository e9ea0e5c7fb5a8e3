"""Rates in the memory of one process and in Valkey: the same rule, and in Valkey one rate over all processes."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.core.rates import Rate, Ticket, take_ticket
from cadenza.fleet.shared import SWEEP_EVERY, MemoryRates, SharedState
from tests.parts.valkey import client
from tests.parts.valkey.conftest import MakeValkeyState
from tests.store.forked import forked
from tests.unit.gateway.clock import Clock
from tests.valkey import Valkey

SLOW = Rate(per_s=0.001, burst=2)
FAST = Rate(per_s=1e9, burst=1)
RUN_S = 60.0
TAKE_S = 0.6
RATES = st.builds(Rate, st.floats(1e-6, 1e6), st.integers(1, 50))
TAKES = st.lists(st.tuples(st.sampled_from("abc"), RATES), min_size=1, max_size=40)


async def test_keys_do_not_disturb_each_other(state: SharedState) -> None:
    """A key that has used up its rate is refused, and another one still has all of its own."""
    assert [(await state.rates.take("key_a", SLOW)).is_granted for _ in range(4)] == [True, True, False, False]
    assert [(await state.rates.take("key_b", SLOW)).remaining for _ in range(2)] == [1, 0]


async def test_rates_of_keys_and_of_networks_are_apart(state: SharedState) -> None:
    """The same name has a rate of each kind."""
    assert [(await rates.take("same", SLOW)).remaining for rates in (state.rates, state.networks)] == [1, 1]


async def test_tickets_at_once_are_exact(state: SharedState) -> None:
    """Of a hundred requests in the same instant, exactly the burst is granted."""
    rate = Rate(per_s=0.001, burst=30)
    tickets = await asyncio.gather(*(state.rates.take("key_a", rate) for _ in range(100)))
    assert [ticket.is_granted for ticket in tickets] == [True] * 30 + [False] * 70
    assert [ticket.remaining for ticket in tickets[:30]] == list(range(29, -1, -1))


async def test_a_ticket_that_is_given_back_can_be_taken_again(state: SharedState) -> None:
    """And no more than that."""
    for _ in range(SLOW.burst):
        await state.rates.take("key_a", SLOW)
    state.rates.release("key_a", SLOW)
    assert [(await state.rates.take("key_a", SLOW)).is_granted for _ in range(2)] == [True, False]


async def test_a_key_is_granted_after_the_wait_that_it_was_told(state: SharedState) -> None:
    """The wait in a refusal is enough."""
    rate = Rate(per_s=20.0, burst=1)
    async with asyncio.timeout(RUN_S):
        while (last := await state.rates.take("key_a", rate)).is_granted:
            pass
    await asyncio.sleep(last.wait_s)
    assert (await state.rates.take("key_a", rate)).is_granted


async def test_an_extreme_rate_works(state: SharedState) -> None:
    """The slowest and the fastest rate that the config allows give tickets."""
    for rate in (Rate(1e-9, 1_000_000_000), Rate(1e9, 1), Rate(1e-300, 1)):
        assert (await state.rates.take(f"key_{rate}", rate)).is_granted


async def test_only_keys_whose_burst_is_full_are_forgotten() -> None:
    """However many keys come, only so many are remembered beside those that are not full yet."""
    clock = Clock()
    rates = MemoryRates(clock)
    for _ in range(SLOW.burst):
        await rates.take("key_a", SLOW)
    for number in range(3 * SWEEP_EVERY):
        await rates.take(f"key_{number}", FAST)
        clock.advance(1e-6)
        assert len(rates) <= SWEEP_EVERY + 1  # key_a
    assert (await rates.take("key_0", FAST)).is_granted
    assert not (await rates.take("key_a", SLOW)).is_granted


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(takes=TAKES)
async def test_valkey_follows_the_rule_of_the_core(
    takes: list[tuple[str, Rate]], valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Tickets of any rates that are taken in the same instant are those of `take_ticket`, to the nanosecond."""
    valkey.command("FLUSHALL")
    valkey.settle()
    state = await make_valkey_state(valkey.url)
    whole_at_ns, expected = dict[str, int](), list[Ticket]()
    for name, rate in takes:
        whole_at_ns[name], ticket = take_ticket(whole_at_ns.get(name, 0), 0, rate)
        expected.append(ticket)
    assert await asyncio.gather(*(state.rates.take(name, rate) for name, rate in takes)) == expected


async def test_a_key_takes_no_memory_once_its_burst_is_full(valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """Valkey forgets it by itself."""
    state = await make_valkey_state(valkey.url)
    await state.rates.take("key_a", Rate(per_s=100.0, burst=1))
    async with asyncio.timeout(RUN_S):
        while b"rate:key_a" in valkey.command("KEYS", "*"):  # noqa: ASYNC110 Valkey does not tell
            await asyncio.sleep(0.01)


async def test_a_flush_forgives_nothing(valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """A key that had used up its rate stays without tickets: every process tells what it knows of it."""
    first, second = [await make_valkey_state(valkey.url) for _ in range(2)]
    assert [(await first.rates.take("key_a", SLOW)).is_granted for _ in range(3)] == [True, True, False]
    valkey.command("FLUSHALL")
    assert not (await first.rates.take("key_a", SLOW)).is_granted
    valkey.settle()
    assert not (await second.rates.take("key_a", SLOW)).is_granted


@pytest.mark.parametrize(("per_s", "burst"), [(0.001, 100), (50.0, 500)])
async def test_one_rate_over_three_processes_is_exact(valkey: Valkey, per_s: float, burst: int) -> None:
    """Three processes that take tickets as fast as they can get together what one may have, and all of it."""

    async def run() -> list[float]:
        async with forked(client.take, valkey.url, str(per_s), str(burst), str(TAKE_S)) as process:
            return [float(word) for word in (await process.on_message()).split()]

    counts, *times = zip(*await asyncio.gather(run(), run(), run()), strict=True)
    begun_s, used_up_s, last_s, ended_s = times
    assert sum(counts) <= burst + per_s * (max(ended_s) - min(begun_s))
    assert sum(counts) + 1 >= burst + per_s * (max(last_s) - min(used_up_s))
