"""Gateways that are restarted, killed, stopped, and cut off from Postgres, while requests run.

No reply is whole and uncharged, none is charged twice, and what a lost gateway had reserved is free again.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.fleet.fleet import Fleet, Gateway, cut_off, stalled, stopped
from tests.fleet.requests import Clients, check_charges, disturbed
from tests.fleet.streams import BEGUN, RunningStreams
from tests.ledger_reader import marked_costs_nano
from tests.loopback import LoopbackUpstream
from tests.service import wait_until

STREAMS = 20
SWEPT_S = 60.0
LOAD_S = 0.5
SERVED_SHARE = 0.8  # on a busy machine, Postgres may not answer in time now and then
pytestmark = pytest.mark.slow(reason="gateways are stopped for longer than their leases")

Separation = Callable[[Gateway], AbstractContextManager[None]]


def names(fleet: Fleet) -> set[str]:
    """The processes that the store knows."""
    return {name for (name,) in fleet.ledger.query("SELECT name FROM processes")}


async def wait_until_swept(fleet: Fleet, before: set[str]) -> None:
    """Wait until one of these processes is gone."""
    await asyncio.to_thread(wait_until, lambda: bool(before - names(fleet)), "the sweep of a gateway", SWEPT_S)


async def test_killed_gateways_lose_no_charge(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Each gateway is killed once under load: whole replies are charged once, and dead reserves are freed."""
    clients = Clients(fleet)
    async with clients.load():
        for gateway in fleet.gateways:
            await asyncio.sleep(LOAD_S)
            gateway.process.kill()
            await asyncio.to_thread(gateway.start)
        await asyncio.sleep(LOAD_S)
        await clients.wait_for_replies(100)
    fleet.check()
    clients.check_charges()


async def test_marked_streams_of_a_killed_gateway_are_charged_by_the_others(
    fleet: Fleet, upstream: LoopbackUpstream
) -> None:
    """While a gateway stays dead, another one charges what its streams had delivered, once, and frees its reserve."""
    clients, dying = Clients(fleet), fleet.gateways[0]
    streams = RunningStreams(clients, upstream)
    await streams.begin(5, [dying.port])
    dying.process.kill()
    assert [reply.is_done for reply in await streams.end()] == [False] * 5
    await asyncio.to_thread(fleet.ledger.wait_until_nothing_is_held, SWEPT_S)
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


@pytest.mark.parametrize("separated", [stopped, cut_off, stalled])
async def test_gateway_that_is_swept_while_it_lives_charges_in_full_or_fails(
    fleet: Fleet, upstream: LoopbackUpstream, separated: Separation
) -> None:
    """Swept while its streams end, it charges each in full or fails it, and serves again. The others go on."""
    clients, others, apart = Clients(fleet), Clients(fleet), fleet.gateways[0]
    streams = RunningStreams(clients, upstream)
    await streams.begin(STREAMS, [apart.port])
    before = names(fleet)
    async with others.load(2, [gateway.port for gateway in fleet.gateways[1:]]):
        with separated(apart):
            streams.release()
            await wait_until_swept(fleet, before)
    for reply in await streams.end():
        assert reply.is_done or reply.events[-1]["error"]["type"] == "api_error"
    await asyncio.to_thread(wait_until, lambda: len(names(fleet)) == len(before), "a new name of the gateway")
    await asyncio.to_thread(wait_until, lambda: apart.process.get("/readyz")[0] == 200, "being ready again")
    assert (await clients.send_patiently(clients.new_request(), apart.port)).is_done
    assert disturbed(others.sent) == []
    assert sum(sent.reply.is_done for sent in others.sent) > SERVED_SHARE * len(others.sent), "they were cut off, too"
    fleet.check()
    check_charges([clients, others])


async def test_rolling_restart_fails_no_request(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Each gateway is taken out of nginx, restarted and put back under load: every request is served and charged."""
    clients = Clients(fleet)
    async with clients.load():
        for gateway in fleet.gateways:
            await asyncio.sleep(LOAD_S)
            others = [other.port for other in fleet.gateways if other is not gateway]
            await asyncio.to_thread(fleet.nginx.use, others)
            await asyncio.to_thread(gateway.process.stop)
            assert gateway.process.process.returncode == 0
            await asyncio.to_thread(gateway.start)
            await asyncio.to_thread(fleet.nginx.use, fleet.ports)
        await asyncio.sleep(LOAD_S)
        await clients.wait_for_replies(100)
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()
