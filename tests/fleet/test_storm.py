"""Far more requests at once over three gateways than the balance can pay for: exactly as many are served as it pays."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import WORDS, Clients
from tests.ledger_reader import estimate_tokens
from tests.loopback import LoopbackUpstream, Whole, usage_of
from tests.raw_client import ChatRequest

MAX_TOKENS = 16  # the least that is ever granted: no request can be fitted to a remainder
PROMPT_TOKENS = estimate_tokens(ChatRequest(100_000).content)
HOLD_NANO = PROMPT_TOKENS * 1070 + MAX_TOKENS * 3450
REST_NANO = HOLD_NANO - 1
REST_S = 60.0
pytestmark = pytest.mark.slow(reason="a storm on a whole fleet")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url)) as running:
        yield running


@pytest.fixture
def exact(upstream: LoopbackUpstream) -> LoopbackUpstream:
    """Every reply costs exactly what was held for it."""
    upstream.always(Whole(WORDS, usage_of(PROMPT_TOKENS, MAX_TOKENS)))
    return upstream


def requests(clients: Clients, count: int) -> list[ChatRequest]:
    """Half of them are streams, a third has an idempotency key."""
    return [
        clients.new_request(stream=number % 2 == 0, max_tokens=MAX_TOKENS, once=number % 3 == 0)
        for number in range(count)
    ]


async def storm(clients: Clients, count: int, ports: Sequence[int] = ()) -> None:
    """Many requests at once. A request that a busy machine refuses with 429 is sent again."""
    turns = itertools.cycle(ports or [clients.fleet.port])
    await asyncio.gather(
        *(clients.send_patiently(request, port) for request, port in zip(requests(clients, count), turns, strict=False))
    )


async def spend_rest(clients: Clients, paid: int) -> None:
    """Send more until so many were served.

    A gateway that gets no core for a moment may keep credit that another one needs, and requests are refused for it.
    """
    async with asyncio.timeout(REST_S):
        while sum(sent.reply.is_done for sent in clients.sent) < paid:
            await clients.send_patiently(clients.new_request(max_tokens=MAX_TOKENS))


def check_storm(clients: Clients, upstream: LoopbackUpstream, paid: int) -> None:
    statuses = Counter(sent.reply.status for sent in clients.sent)
    del statuses[429]
    asked = len({sent.request.number for sent in clients.sent})
    assert statuses == {200: paid, 402: asked - paid}
    assert sum(sent.reply.is_done for sent in clients.sent) == paid
    assert len(upstream.requests) == paid
    assert clients.fleet.ledger.balance_nano(clients.email) == REST_NANO
    clients.fleet.check()


@pytest.mark.parametrize(("paid", "asked"), [(1, 30), (37, 150), (300, 450)])
def test_storm_serves_exactly_what_the_balance_pays_for(
    fleet: Fleet, exact: LoopbackUpstream, paid: int, asked: int
) -> None:
    """Of many requests at once exactly as many are served as the balance pays for; the others get 402."""
    clients = Clients(fleet, paid * HOLD_NANO + REST_NANO)

    async def run() -> None:
        await storm(clients, asked)
        await spend_rest(clients, paid)

    asyncio.run(run())
    check_storm(clients, exact, paid)


def test_spare_reserve_is_given_back_to_a_gateway_that_needs_it(fleet: Fleet, exact: LoopbackUpstream) -> None:
    """What one gateway has reserved beyond its requests pays for the requests of the others."""
    clients, first = Clients(fleet, 200 * HOLD_NANO + REST_NANO), 50

    async def run() -> None:
        await storm(clients, first, fleet.ports[:1])
        await storm(clients, 175, fleet.ports[1:])
        await spend_rest(clients, 200)

    asyncio.run(run())
    check_storm(clients, exact, 200)


def test_one_account_s_storm_does_not_touch_another(fleet: Fleet, exact: LoopbackUpstream) -> None:
    """While one account runs out of credit, every request of another is served."""
    poor, rich = Clients(fleet, 20 * HOLD_NANO + REST_NANO), Clients(fleet)

    async def run() -> None:
        await asyncio.gather(storm(poor, 80), storm(rich, 80))

    asyncio.run(run())
    statuses = [Counter(sent.reply.status for sent in clients.sent) for clients in (poor, rich)]
    assert [{status: counts[status] for status in (200, 402)} for counts in statuses] == [
        {200: 20, 402: 60},
        {200: 80, 402: 0},
    ]
    fleet.check()
