"""One rate for each key and one ceiling of slots over all gateways, kept by the shared state.

A rate is measured on the client's side: what is accepted is at most the burst and the rate times the time.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import LATE_STORE, REFUSED_PAUSE_S, USAGE, WORDS, Clients
from tests.fleet.state import StateServer
from tests.loopback import LoopbackUpstream, Pause, Whole
from tests.service import ServiceProcess, wait_until
from tests.valkey import run_while_up

RATE, BURST = 10, 60  # clients that get no core for some seconds lose none of it
RATE_S = 2.0
REFUSALS = 20
SLOTS = 12
SMALL_BURST = 20
LEASE_S = 60.0
pytestmark = pytest.mark.slow(reason="a fleet, and leases that lapse")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, state: StateServer, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    spec = FleetSpec(fleet_upstream.base_url, limits={"concurrency": SLOTS}, state_port=state.port)
    with running_fleet(cluster, spec) as running:
        yield running


def processes(fleet: Fleet) -> list[ServiceProcess]:
    return [gateway.process for gateway in fleet.gateways]


def count_refusals(clients: Clients) -> int:
    return sum(sent.reply.status == 429 for sent in clients.sent)


def check_rate(clients: Clients) -> None:
    """As many were accepted as the rate allows in the time between the first and the last, and no more."""
    accepted = [sent for sent in clients.sent if sent.reply.status == 200]
    first_s, last_s = min(sent.sent_s for sent in clients.sent), max(sent.answered_s for sent in accepted)
    allowed = BURST + RATE * (last_s - first_s)
    assert len(accepted) <= allowed + 1
    assert len(accepted) >= allowed * 0.85, "the limit is stricter than it says"
    assert {sent.reply.status for sent in clients.sent} == {200, 429}


def test_rate_of_a_key_is_one_over_the_fleet(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A key that asks all gateways for far more than its rate is served its burst and its rate, to the request."""

    async def run() -> Clients:
        clients = Clients(fleet, requests_per_second=RATE, burst=BURST)
        async with clients.load(6, fleet.ports):
            await asyncio.sleep(RATE_S)
            await asyncio.to_thread(wait_until, lambda: count_refusals(clients) >= REFUSALS, "refusals")
        return clients

    check_rate(run_while_up(processes(fleet), lambda: asyncio.run(run())))
    fleet.check()


def test_rate_is_no_share_of_each_gateway(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A key that asks only one gateway has its whole burst there, and the others have then nothing left for it."""

    async def run() -> tuple[list[bool], list[bool]]:
        clients = Clients(fleet, requests_per_second=0.001, burst=SMALL_BURST)
        there = [await is_served(clients, fleet.ports[0]) for _ in range(SMALL_BURST)]
        return there, [await is_served(clients, port) for port in fleet.ports]

    served = run_while_up(processes(fleet), lambda: asyncio.run(run()))
    assert served == ([True] * SMALL_BURST, [False] * len(fleet.ports))
    fleet.check()


async def is_served(clients: Clients, port: int) -> bool:
    """Whether the key has something left. A request that a busy Postgres did not answer in time is sent again."""
    reply = await clients.send(clients.new_request(), port)
    while LATE_STORE[0] in reply.raw:
        reply = await clients.send(clients.new_request(), port)
    assert reply.is_done or reply.status == 429
    return reply.is_done


def test_slots_are_one_ceiling_over_the_fleet(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """However many requests are sent, exactly as many run as there are slots, and their slots are then used again."""
    clients = Clients(fleet)

    async def run() -> None:
        for _ in range(2):
            await fill_slots(clients, upstream)

    asyncio.run(run())
    fleet.check()
    clients.check_charges()


async def fill_slots(clients: Clients, upstream: LoopbackUpstream) -> None:
    """Send many requests over all gateways: SLOTS reach the upstream, and all others get 429 again and again."""
    pause, before, is_full, many = Pause(), len(upstream.requests), asyncio.Event(), 3 * SLOTS
    upstream.always(Whole(WORDS, USAGE, pause))
    ports = itertools.islice(itertools.cycle(clients.fleet.ports), many)
    asking = [asyncio.create_task(keep_asking(clients, port, is_full)) for port in ports]
    await asyncio.to_thread(wait_until, lambda: len(upstream.requests) - before >= SLOTS, "a request for each slot")
    refused = count_refusals(clients)
    await asyncio.to_thread(wait_until, lambda: count_refusals(clients) >= refused + many, "the refusals")
    assert len(upstream.requests) - before == SLOTS
    is_full.set()
    pause.release()
    await asyncio.gather(*asking)


async def keep_asking(clients: Clients, port: int, is_over: asyncio.Event) -> None:
    """Send a request until it is not refused: a slot that another gateway leased comes a moment later."""
    while (await clients.send(clients.new_request(), port)).status == 429 and not is_over.is_set():  # noqa: ASYNC110
        await asyncio.sleep(REFUSED_PAUSE_S)


def test_slots_of_a_killed_gateway_are_used_again(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A gateway that dies with running requests gives their slots back when its lease ends."""
    clients, dying = Clients(fleet), fleet.gateways[0]
    fleet.each(lambda gateway: gateway.process.reload())  # after long replies a route would be given less for a minute

    async def run() -> None:
        pause = Pause()
        upstream.always(Whole(WORDS, USAGE, pause))
        sending = [asyncio.create_task(keep_asking(clients, dying.port, asyncio.Event())) for _ in range(SLOTS)]
        await asyncio.to_thread(upstream.wait_for_request, SLOTS)
        dying.process.kill()
        pause.release()
        await asyncio.gather(*sending)
        upstream.always(Whole(WORDS, USAGE))
        other, began_s = fleet.ports[1], time.monotonic()
        while not (await clients.send(clients.new_request(), other)).is_done:
            assert time.monotonic() - began_s < LEASE_S, "the slots of the dead gateway are not given back"
            await asyncio.sleep(0.1)

    asyncio.run(run())
    dying.start()
    asyncio.run(fill_slots(clients, upstream))
    fleet.check()
    clients.check_charges()
