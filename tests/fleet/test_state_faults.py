"""The shared state killed, flushed and cut off from some gateways, and gateways whose clocks are minutes apart.

Without it each gateway keeps to its share of the limits and goes on serving; when it is back, the limits are one again.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import CannotInstall, install, skip_or_fail, wait_for_installation
from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import Clients, disturbed
from tests.loopback import LoopbackUpstream
from tests.valkey import Valkey

RATE, BURST = 10, 20
LOAD_S = 1.5
RECOVERED_S = 120.0
LIBRARIES, LIBRARY = Path("/usr/lib"), "*/faketime/libfaketime.so.1"
CLOCKS_S = (-300.0, 0.0, 420.0)
pytestmark = pytest.mark.slow(reason="faults of Valkey under load")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, state: Valkey, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    spec = FleetSpec(fleet_upstream.base_url, state=state.socket, has_links=True)
    with running_fleet(cluster, spec) as running:
        yield running


@pytest.fixture
def faketime() -> str:
    """The library that sets the clock of a process wrong."""
    wait_for_installation()
    if not list(LIBRARIES.glob(LIBRARY)):
        try:
            install("libfaketime", limit_s=60.0)
        except CannotInstall as reason:
            skip_or_fail(f"clocks cannot be set wrong: {reason}")
    return str(next(LIBRARIES.glob(LIBRARY)))


async def spend_burst(clients: Clients, ports: list[int]) -> int:
    """Ask the gateways in turn until they refuse; how many requests they served."""
    served, refusals = 0, 0
    while refusals < 2 * len(ports):
        for port in ports:
            is_done = (await clients.send(clients.new_request(), port)).is_done
            served += is_done
            refusals = 0 if is_done else refusals + 1
    return served


async def wait_until_shared(fleet: Fleet, ports: list[int]) -> None:
    """Wait until what one gateway accepted counts at all of them again."""

    async with asyncio.timeout(RECOVERED_S):
        while await spend_burst(Clients(fleet, requests_per_second=0.01, burst=3), ports) != 3:
            pass


async def test_killed_state_is_served_without(fleet: Fleet, state: Valkey, upstream: LoopbackUpstream) -> None:
    """Killed, started again and flushed under load, the shared state costs no request, and the limits are one again."""
    clients = Clients(fleet)
    async with clients.load():
        await asyncio.sleep(LOAD_S)
        state.kill()
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(state.start)
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(state.command, "FLUSHALL")
        await asyncio.sleep(LOAD_S)
    await wait_until_shared(fleet, fleet.ports)
    assert disturbed(clients.sent) == []
    assert "shared state" in fleet.output
    fleet.check()
    clients.check_charges()


async def test_gateway_whose_state_stalls_serves_on(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """The shared state does not answer one gateway: none refuses a request that is within every limit."""
    clients, lonely = Clients(fleet), fleet.gateways[0]
    async with clients.load(6, fleet.ports):
        lonely.state.stall()
        await asyncio.sleep(2 * LOAD_S)
        lonely.state.resume()
        await asyncio.sleep(LOAD_S)
    await wait_until_shared(fleet, fleet.ports)
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()


async def test_clocks_that_are_minutes_apart_change_nothing(
    cluster: Cluster, state: Valkey, upstream: LoopbackUpstream, faketime: str
) -> None:
    """With clocks 5 minutes behind and 7 ahead, nobody is swept, a rate is one, and every charge is exact."""
    spec = FleetSpec(upstream.base_url, state=state.socket, clocks_s=CLOCKS_S)
    with running_fleet(cluster, spec, faketime) as fleet:
        clients, limited = Clients(fleet), Clients(fleet, requests_per_second=0.01, burst=BURST)
        names = fleet.ledger.query("SELECT name FROM processes ORDER BY name")
        async with clients.load(6, fleet.ports):
            assert await spend_burst(limited, fleet.ports) == BURST
            await asyncio.sleep(8.0)  # longer than a dead process is left alone
        assert fleet.ledger.query("SELECT name FROM processes ORDER BY name") == names
        assert disturbed(clients.sent) == []
        fleet.check()
        clients.check_charges()
