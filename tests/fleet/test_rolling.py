"""Restarts of all gateways, one after the other, under load; and two releases over one schema.

The operator takes a gateway out of nginx, ends it with SIGTERM, starts it again and puts it back.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.old_release import OldRelease
from tests.fleet.requests import USAGE, WORDS, Clients, disturbed
from tests.ledger_reader import estimate_tokens
from tests.loopback import LoopbackUpstream, Whole, usage_of
from tests.raw_client import ChatRequest
from tests.service import wait_until

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
    assert fleet.ledger.still_held() == (0, 0, 0, 0)
    ending.start()
    fleet.check()
    clients.check_charges()


def test_two_releases_share_one_balance(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """The release before, which holds by request, and this one serve together exactly what the balance pays for."""
    paid, asked = 60, 45  # so neither can serve all
    clients = Clients(fleet, paid * HOLD_NANO)
    upstream.always(Whole(WORDS, usage_of(PROMPT_TOKENS, MAX_TOKENS)))

    async def run() -> int:
        async with OldRelease.running(fleet.ledger, clients.email, clients.key) as old:
            requests = [clients.new_request(max_tokens=MAX_TOKENS) for _ in range(asked)]
            serving = asyncio.create_task(old.serve(asked, HOLD_NANO))
            await asyncio.gather(*map(clients.send_patiently, requests))
            return await serving

    served_before = asyncio.run(run())
    served = sum(sent.reply.is_done for sent in clients.sent)
    assert served_before > 0
    assert served > 0
    assert served_before + served == paid
    assert {sent.reply.status for sent in clients.sent} <= {200, 402, 429}
    assert fleet.ledger.balance_nano(clients.email) == 0
    fleet.check()


def test_open_holds_of_the_release_before_are_respected(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A living process of the release before keeps its hold beside this release, and settles it once."""
    clients = Clients(fleet)

    async def run() -> None:
        async with OldRelease.running(fleet.ledger, clients.email, clients.key) as old:
            held = await old.take_hold(HOLD_NANO)
            assert held
            async with clients.load(2):
                await asyncio.sleep(8.0)  # longer than a dead process is left alone
            assert await old.sweep() == 0, "this release has nothing that the release before would sweep"
            assert await old.settle(held, HOLD_NANO), "its hold was ended by another process"

    asyncio.run(run())
    assert disturbed(clients.sent) == []
    fleet.check()


def test_open_holds_of_a_dead_process_of_the_release_before_are_released(
    fleet: Fleet, upstream: LoopbackUpstream
) -> None:
    """What the last process of the release before left held is free again, without any process of that release."""
    clients = Clients(fleet)

    async def run() -> None:
        async with OldRelease.running(fleet.ledger, clients.email, clients.key) as old:
            assert await old.take_hold(HOLD_NANO)

    asyncio.run(run())
    wait_until(lambda: not any(fleet.ledger.still_held()), "the end of the hold", SWEPT_S)
    assert fleet.ledger.balance_nano(clients.email) == clients.credit_nano
    reply = asyncio.run(clients.send_patiently(clients.new_request()))
    assert reply.usage["completion_tokens"] == USAGE["completion_tokens"]
    fleet.check()
