"""Valkey killed, restarted, flushed, frozen, slow, read-only or cut off: limits hold by share, and all comes back."""

import asyncio
import io
import json
import time
from collections.abc import Sequence

import pytest

from cadenza.core.rates import Rate, Ticket
from cadenza.gateway.slots import Slots
from cadenza.observe import Observer, make_log
from cadenza.parts.valkey.connection import ValkeyAddress
from cadenza.parts.valkey.link import ValkeyTiming
from cadenza.parts.valkey.slots import SLOTS_KEY
from cadenza.parts.valkey.state import ValkeyState
from tests.link import Link
from tests.parts.valkey.conftest import PATIENT, WAIT_S, MakeValkeyState, enter_all, until, with_slots
from tests.valkey import Valkey

pytestmark = pytest.mark.slow(reason="waits for the time limits of a Valkey that hangs")

SLOW = Rate(per_s=0.001, burst=12)
SOON_S = 0.3
PERSISTENT = ValkeyTiming(trip_s=30.0, connect_s=30.0, retry_s=0.05, retry_s_max=0.2, lease_s=60.0)  # never late
QUICK = ValkeyTiming(trip_s=1.0, connect_s=30.0, retry_s=0.05, retry_s_max=0.2)  # sometimes late on a busy machine
SHORT = ValkeyTiming(trip_s=1.0, connect_s=30.0, retry_s=0.05, retry_s_max=0.2, lease_s=2.5)
RESTARTED = ValkeyTiming(trip_s=30.0, connect_s=30.0, retry_s=0.02, retry_s_max=0.05, settle_s=0.2)
DOWN = "the shared state does not answer: this process keeps to its share"
BACK = "the shared state is back"


class Observed:
    """An observer whose log the test reads."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.observer = Observer(make_log(self._stream))

    @property
    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    @property
    def gauge(self) -> float | None:
        return self.observer.metrics.registry.get_sample_value("cadenza_shared_state_up")


def url_of(link: Link) -> str:
    return f"redis://127.0.0.1:{link.port}/0"


async def granted(state: ValkeyState, name: str = "key_a", rate: Rate = SLOW) -> int:
    """How many tickets are left."""
    tickets = await asyncio.gather(*(state.rates.take(name, rate) for _ in range(2 * rate.burst)))
    return sum(ticket.is_granted for ticket in tickets)


async def count_slots(slots: Slots, limit: int) -> int:
    """How many slots can be taken, one by one. They are given back."""
    taken = 0
    while taken <= limit and await slots.enter(f"key_{taken}"):
        taken += 1
    for number in range(taken):
        slots.leave(f"key_{number}")
    return taken


async def until_all_free(slots: Slots, limit: int) -> None:
    """Until the other processes have given back what they do not need, or their leases have lapsed."""
    async with asyncio.timeout(WAIT_S):
        while await count_slots(slots, limit) < limit:  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.05)


async def test_a_killed_valkey_is_done_without_and_comes_back(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Tickets go on at once, it is logged once and shown in a metric, and a new server is used without a restart."""
    observed = Observed()
    state = await make_valkey_state(own_valkey.url, PERSISTENT, observed.observer)
    assert (observed.gauge, observed.events) == (1, [])
    own_valkey.kill()
    assert await asyncio.wait_for(granted(state), WAIT_S) == SLOW.burst
    await until(lambda: observed.gauge == 0)
    await asyncio.sleep(1.0)  # several attempts
    assert observed.events == [DOWN]
    own_valkey.start()
    await until(lambda: state.is_up)
    assert observed.events == [DOWN, BACK]
    assert observed.gauge == 1
    assert await granted(state) == 0
    assert await granted(state, "key_b") == SLOW.burst


async def test_a_valkey_that_is_missing_at_the_start_is_used_later(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """The start does not wait for it, and the process has all limits until it knows of others."""
    own_valkey.kill()
    state, slots = await with_slots(make_valkey_state, own_valkey.url, 5, PERSISTENT, SOON_S)
    assert not state.is_up
    assert await granted(state) == SLOW.burst
    assert await count_slots(slots, 5) == 5
    own_valkey.start()
    await until(lambda: state.is_up)
    assert await granted(state, "key_b") == SLOW.burst


async def test_no_request_waits_twice_for_a_frozen_valkey(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Requests wait for one trip at most; after it, until Valkey answers again, none waits at all."""
    observed = Observed()
    state = await make_valkey_state(own_valkey.url, QUICK, observed.observer)
    await until(lambda: state.is_up)
    earlier = len(observed.lines)
    own_valkey.freeze()
    try:
        assert await asyncio.wait_for(granted(state), WAIT_S) == SLOW.burst
        assert not state.is_up
        has_waited = asyncio.Event()
        asyncio.get_running_loop().call_soon(has_waited.set)
        for number in range(200):
            await state.rates.take(f"key_{number}", SLOW)
        assert not has_waited.is_set()
    finally:
        own_valkey.thaw()
    await until(lambda: state.is_up)
    down, back = observed.lines[earlier : earlier + 2]
    assert (down["event"], down["reason"], back["event"]) == (DOWN, "no answer in time", BACK)


async def test_a_slow_valkey_is_not_used(own_valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """While its answers take longer than a trip may take, the link stays down; then it comes back."""
    with Link(own_valkey.socket).running() as link:
        observed = Observed()
        state = await make_valkey_state(url_of(link), QUICK, observed.observer)
        await until(lambda: state.is_up)
        earlier = len(observed.events)
        link.delay_s = 2 * QUICK.trip_s
        assert await asyncio.wait_for(granted(state), WAIT_S) == SLOW.burst
        await asyncio.sleep(3 * QUICK.trip_s)
        assert not state.is_up
        link.delay_s = 0.0
        await until(lambda: state.is_up)
        assert observed.events[earlier : earlier + 2] == [DOWN, BACK]


async def settled(fleet: Sequence[tuple[ValkeyState, Slots]]) -> None:
    """Until Valkey knows all processes, and decides again."""
    await until(lambda: all(state.is_up and state.lender.processes == len(fleet) for state, _ in fleet))
    await asyncio.sleep(2 * RESTARTED.settle_s)


async def test_restarts_under_load_stay_within_the_rate(own_valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """A key that asks for more than its rate everywhere gets one burst too many at most, and its rate at least."""
    fleet = [await with_slots(make_valkey_state, own_valkey.url, 9, RESTARTED, SOON_S) for _ in range(3)]
    await settled(fleet)
    rate, is_over, tickets = Rate(per_s=30.0, burst=30), asyncio.Event(), list[Ticket]()

    async def client(state: ValkeyState) -> None:
        while not is_over.is_set():
            tickets.append(await state.rates.take("key_a", rate))
            await asyncio.sleep(0.01)

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as running:
        for state, _ in fleet:
            running.create_task(client(state))
        for _ in range(5):
            own_valkey.kill()
            await until(lambda: not any(state.is_up for state, _ in fleet))
            own_valkey.start()
            await settled(fleet)
        is_over.set()
    lasted_s = time.monotonic() - began_s
    taken = sum(ticket.is_granted for ticket in tickets)
    assert rate.per_s * lasted_s / 2 < taken <= 2 * rate.burst + rate.per_s * lasted_s


async def test_a_forgotten_script_is_sent_again(own_valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """An empty script cache costs one more trip, and the link stays up."""
    observed = Observed()
    state = await make_valkey_state(own_valkey.url, PATIENT, observed.observer)
    await granted(state)
    own_valkey.command("SCRIPT", "FLUSH")
    assert await granted(state) == 0
    assert (state.is_up, observed.events) == (True, [])


async def test_leases_that_a_flush_lost_are_not_given_again(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Right after a flush, a process that asks for more gets none of the slots that others have."""
    _, first = await with_slots(make_valkey_state, own_valkey.url, 10, PATIENT, SOON_S)
    _, second = await with_slots(make_valkey_state, own_valkey.url, 10, PATIENT, SOON_S)
    await enter_all(first, "key_a", 7)
    await enter_all(second, "key_b", 2)
    own_valkey.command("FLUSHALL")
    more = 0
    while more < 10 and await second.enter("key_b"):
        more += 1
    assert 7 + 2 + more <= 10


async def test_a_process_that_joins_after_a_flush_costs_no_slot(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Idle processes offer their slots to a process that joins, and have them again although leases do not grow."""
    fleet = [await with_slots(make_valkey_state, own_valkey.url, 30, PATIENT, SOON_S) for _ in range(2)]
    await until(lambda: all(state.lender.processes == 2 for state, _ in fleet))
    own_valkey.command("FLUSHALL")
    await until(lambda: own_valkey.command("HLEN", SLOTS_KEY) == b":3\r\n")  # both, and when leases were lost
    fleet.append(await with_slots(make_valkey_state, own_valkey.url, 30, PATIENT, SOON_S))
    await until(lambda: all(state.lender.processes == 3 for state, _ in fleet))
    for _, slots in fleet:
        await enter_all(slots, "key_a", 3)


async def test_each_process_has_its_share_without_valkey(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """Once its lease has lapsed, each of three processes has a third of the rate and of the slots."""
    fleet = [await with_slots(make_valkey_state, own_valkey.url, 9, SHORT, SOON_S) for _ in range(3)]
    await until(lambda: all(state.lender.processes == 3 for state, _ in fleet))
    own_valkey.kill()
    await until(lambda: not any(state.is_up for state, _ in fleet))
    await until(lambda: all(state.lender.share == 3 for state, _ in fleet))
    await asyncio.sleep(SHORT.lease_s + SHORT.renew_s)
    assert [await count_slots(slots, 9) for _, slots in fleet] == [3, 3, 3]
    assert [await granted(state) for state, _ in fleet] == [4, 4, 4]
    own_valkey.start()
    await until(lambda: all(state.is_up for state, _ in fleet))
    _, first = fleet[0]
    await until_all_free(first, 9)


async def test_a_process_that_is_cut_off_keeps_to_its_share(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState
) -> None:
    """The other half of the fleet has all slots after the lease lapsed; the one that is cut off has half of them."""
    with Link(own_valkey.socket).running() as link:
        apart_state, apart = await with_slots(make_valkey_state, url_of(link), 8, SHORT, SOON_S)
        state, slots = await with_slots(make_valkey_state, own_valkey.url, 8, SHORT, SOON_S)
        await until(lambda: apart_state.lender.processes == state.lender.processes == 2)
        await enter_all(apart, "key_a", 6)
        await until(lambda: apart_state.lender.processes == state.lender.processes == 2)
        link.stall()
        assert await count_slots(slots, 8) <= 2 or state.lender.processes == 1  # the lease has lapsed
        await until_all_free(slots, 8)
        assert not await apart.enter("key_b")  # it has more than its share
        link.resume()
        await until(lambda: apart_state.is_up)
        for _ in range(6):
            apart.leave("key_a")
        await until_all_free(apart, 8)


async def test_a_replica_is_not_used(own_valkey: Valkey, make_valkey_state: MakeValkeyState) -> None:
    """A server that refuses writes counts as down, is logged once, and is used again when it is the primary."""
    observed = Observed()
    state = await make_valkey_state(own_valkey.url, PERSISTENT, observed.observer)
    own_valkey.command("REPLICAOF", "127.0.0.1", "1")
    assert await granted(state) == SLOW.burst
    await asyncio.sleep(1.0)  # several attempts
    assert (state.is_up, observed.events) == (False, [DOWN])
    assert "READONLY" in observed.lines[0]["reason"]
    own_valkey.command("REPLICAOF", "NO", "ONE")
    await until(lambda: state.is_up)


@pytest.mark.parametrize("user", ["", "me"])
async def test_a_wrong_password_is_logged_without_it(
    own_valkey: Valkey, make_valkey_state: MakeValkeyState, user: str
) -> None:
    """Neither the log nor a repr shows the password; the right one is accepted."""
    own_valkey.command("ACL", "SETUSER", user or "default", "on", ">r1ght", "~*", "&*", "+@all")
    observed, path = Observed(), own_valkey.socket
    wrong = await make_valkey_state(f"unix://{user}:wr0ng@{path}", PERSISTENT, observed.observer)
    assert not wrong.is_up
    (line,) = observed.lines
    assert "WRONGPASS" in line["reason"]
    assert "wr0ng" not in json.dumps(line) + repr(ValkeyAddress.parse(f"unix://{user}:wr0ng@{path}"))
    right = await make_valkey_state(f"unix://{user}:r1ght@{path}?db=3", PERSISTENT)
    assert right.is_up
