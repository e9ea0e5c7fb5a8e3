"""Restarts of all gateways, one after the other, under load.

The operator takes a gateway out of nginx, ends it with SIGTERM, starts it again and puts it back.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import Clients, disturbed
from tests.ledger_reader import estimate_tokens
from tests.loopback import LoopbackUpstream
from tests.raw_client import ChatRequest

LOAD_S = 0.5
MAX_TOKENS = 16
PROMPT_TOKENS = estimate_tokens(ChatRequest(100_000).content)
HOLD_NANO = PROMPT_TOKENS * 1070 + MAX_TOKENS * 3450
SWEPT_S = 60.0
pytestmark = pytest.mark.slow(reason="restarts of a whole fleet under load")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url)) as running:
        yield running


def test_rolling_restart_fails_no_request(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Every gateway is restarted under load, and every request is served and charged."""
    clients = Clients(fleet)

    async def run() -> None:
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

    asyncio.run(run())
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()


def test_drained_gateway_gives_its_reserve_back_at_once(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """When a gateway has ended, none of the credit that it reserved is held any more."""
    clients, ending = Clients(fleet), fleet.gateways[2]
    asyncio.run(clients.send_all([clients.new_request() for _ in range(20)], [ending.port]))
    ending.process.stop()
    assert fleet.ledger.still_held() == (0, 0, 0)
    ending.start()
    fleet.check()
    clients.check_charges()
