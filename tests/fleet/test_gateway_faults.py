"""Gateways that are killed, stopped and continued, and cut off from Postgres, while requests run.

No reply is whole and uncharged, none is charged twice, and what a lost gateway had reserved is free again.
"""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import Clients, disturbed
from tests.fleet.streams import BEGUN, RunningStreams
from tests.ledger_reader import marked_costs_nano
from tests.loopback import LoopbackUpstream
from tests.service import wait_until

STREAMS = 20
CUT_OFF_S = 20.0
SWEPT_S = 60.0
LOAD_S = 0.5
SERVED_SHARE = 0.8  # on a busy machine, Postgres may not answer in time now and then
pytestmark = pytest.mark.slow(reason="gateways are stopped for longer than their leases")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url, has_links=True)) as running:
        yield running


def names(fleet: Fleet) -> set[str]:
    """The processes that the store knows."""
    return {name for (name,) in fleet.ledger.query("SELECT name FROM processes")}


async def wait_until_swept(fleet: Fleet, before: set[str]) -> None:
    """Wait until one of these processes is gone."""
    await asyncio.to_thread(wait_until, lambda: bool(before - names(fleet)), "the sweep of a gateway", SWEPT_S)


def test_killed_gateways_lose_no_charge(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Each gateway is killed once under load: whole replies are charged once, and dead reserves are freed."""
    clients = Clients(fleet)

    async def run() -> None:
        async with clients.load():
            for gateway in fleet.gateways:
                await asyncio.sleep(LOAD_S)
                gateway.process.kill()
                await asyncio.to_thread(gateway.start)
            await asyncio.sleep(LOAD_S)
            await clients.wait_for_replies(100)

    asyncio.run(run())
    fleet.check()
    clients.check_charges()


def test_marked_streams_of_a_killed_gateway_are_charged_by_the_others(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """While a gateway stays dead, another one charges what its streams had delivered, once, and frees its reserve."""
    clients, dying = Clients(fleet), fleet.gateways[0]

    async def run() -> None:
        streams = RunningStreams(clients, upstream)
        await streams.begin(5, [dying.port])
        dying.process.kill()
        assert [reply.is_done for reply in await streams.end()] == [False] * 5
        await asyncio.to_thread(fleet.ledger.wait_until_nothing_is_held, SWEPT_S)

    asyncio.run(run())
    rows = fleet.ledger.rows()
    for sent in clients.sent:
        if sent.reply.status == 429:
            continue
        [row] = rows[sent.request.request_id]
        assert row.is_swept
        assert row.cost_nano in marked_costs_nano("forte", sent.request.content, BEGUN)
    clients.check_charges()
    dying.start()
    fleet.check()


def test_gateway_that_is_swept_while_it_is_stopped_charges_in_full_or_fails(
    fleet: Fleet, upstream: LoopbackUpstream
) -> None:
    """Stopped until the others swept it, then continued: whole replies are charged in full, and it serves again."""
    clients, stopped = Clients(fleet), fleet.gateways[0]

    async def run() -> None:
        streams = RunningStreams(clients, upstream)
        await streams.begin(STREAMS, [stopped.port])
        before = names(fleet)
        stopped.process.send_signal(signal.SIGSTOP)
        streams.release()
        await wait_until_swept(fleet, before)
        stopped.process.send_signal(signal.SIGCONT)
        await streams.end()
        await asyncio.to_thread(wait_until, lambda: len(names(fleet)) == len(before), "a new name of the gateway")
        assert (await clients.send_patiently(clients.new_request(), stopped.port)).is_done

    try:
        asyncio.run(run())
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    fleet.check()
    clients.check_charges()


def test_gateway_cut_off_from_postgres_charges_its_streams_in_full_or_fails(
    fleet: Fleet, upstream: LoopbackUpstream
) -> None:
    """Cut off for 20 s while its streams end: each reply is charged in full or ends with an error."""
    clients, cut_off = Clients(fleet), fleet.gateways[0]

    async def run() -> None:
        streams = RunningStreams(clients, upstream)
        await streams.begin(STREAMS, [cut_off.port])
        cut_off.store.cut()
        cut_s = time.monotonic()
        streams.release()
        others = [gateway.port for gateway in fleet.gateways[1:]]
        async with clients.load(2, others):
            await asyncio.sleep(CUT_OFF_S)
        cut_off.store.restore()
        for reply in await streams.end():
            assert reply.is_done or reply.events[-1]["error"]["type"] == "api_error"
        since = clients.since(cut_s)
        assert disturbed(since) == [], "the other gateways were disturbed"
        assert sum(sent.reply.is_done for sent in since) > SERVED_SHARE * len(since), "they were cut off, too"
        await asyncio.to_thread(wait_until, lambda: cut_off.process.get("/readyz")[0] == 200, "being ready again")
        assert (await clients.send_patiently(clients.new_request(), cut_off.port)).is_done

    asyncio.run(run())
    fleet.check()
    clients.check_charges()


def test_gateway_whose_store_stalls_is_fenced(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Its connection to Postgres stalls without closing until it is swept: no whole reply is left uncharged."""
    clients, stalled = Clients(fleet), fleet.gateways[1]

    async def run() -> None:
        streams = RunningStreams(clients, upstream)
        await streams.begin(STREAMS, [stalled.port])
        before = names(fleet)
        stalled.store.stall()
        streams.release()
        await wait_until_swept(fleet, before)
        stalled.store.resume()
        await streams.end()
        await asyncio.to_thread(wait_until, lambda: stalled.process.get("/readyz")[0] == 200, "being ready again")
        assert (await clients.send_patiently(clients.new_request(), stalled.port)).is_done

    asyncio.run(run())
    fleet.check()
    clients.check_charges()
