"""One ceiling of slots over all gateways, kept by the shared state."""

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import REFUSED_PAUSE_S, USAGE, WORDS, Clients
from tests.loopback import LoopbackUpstream, Pause, Whole
from tests.service import wait_until
from tests.valkey import Valkey

SLOTS = 12
LEASE_S = 60.0
pytestmark = pytest.mark.slow(reason="a fleet, and leases that lapse")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, state: Valkey, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    spec = FleetSpec(fleet_upstream.base_url, limits={"concurrency": SLOTS}, state=state.socket)
    with running_fleet(cluster, spec) as running:
        yield running


def count_refusals(clients: Clients) -> int:
    return sum(sent.reply.status == 429 for sent in clients.sent)


async def test_slots_are_one_ceiling_over_the_fleet(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """However many requests are sent, exactly as many run as there are slots, and their slots are then used again."""
    clients = Clients(fleet)
    for _ in range(2):
        await fill_slots(clients, upstream)
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


async def test_slots_of_a_killed_gateway_are_used_again(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A gateway that dies with running requests gives their slots back when its lease ends."""
    clients, dying = Clients(fleet), fleet.gateways[0]
    fleet.each(lambda gateway: gateway.process.reload())  # after long replies a route would be given less for a minute
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
    dying.start()
    await fill_slots(clients, upstream)
    fleet.check()
    clients.check_charges()
