"""Far more requests at once over three gateways than the balance can pay for: exactly as many are served as it pays."""

import asyncio
from collections import Counter
from collections.abc import Iterator

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


def check_storm(clients: Clients, upstream: LoopbackUpstream, paid: int) -> None:
    statuses = Counter(sent.reply.status for sent in clients.sent)
    assert statuses == {200: paid, 402: len(clients.sent) - paid}
    assert sum(sent.reply.is_done for sent in clients.sent) == paid
    assert len(upstream.requests) == paid
    assert clients.fleet.ledger.balance_nano(clients.email) == REST_NANO
    clients.fleet.check()


@pytest.mark.parametrize(("paid", "asked"), [(1, 30), (37, 300), (600, 900)])
def test_storm_serves_exactly_what_the_balance_pays_for(
    fleet: Fleet, exact: LoopbackUpstream, paid: int, asked: int
) -> None:
    """Of many requests at once exactly as many are served as the balance pays for; the others get 402."""
    clients = Clients(fleet, paid * HOLD_NANO + REST_NANO)
    asyncio.run(clients.send_all(requests(clients, asked)))
    check_storm(clients, exact, paid)


def test_spare_reserve_is_given_back_to_a_gateway_that_needs_it(fleet: Fleet, exact: LoopbackUpstream) -> None:
    """What one gateway has reserved beyond its requests pays at once for the requests of the others."""
    clients, first = Clients(fleet, 400 * HOLD_NANO + REST_NANO), 100

    async def run() -> None:
        await clients.send_all(requests(clients, first), fleet.ports[:1])
        await clients.send_all(requests(clients, 350), fleet.ports[1:])

    asyncio.run(run())
    check_storm(clients, exact, 400)


def test_one_account_s_storm_does_not_touch_another(fleet: Fleet, exact: LoopbackUpstream) -> None:
    """While one account runs out of credit, every request of another is served."""
    poor, rich = Clients(fleet, 20 * HOLD_NANO + REST_NANO), Clients(fleet)

    async def run() -> None:
        await asyncio.gather(poor.send_all(requests(poor, 150)), rich.send_all(requests(rich, 150)))

    asyncio.run(run())
    assert Counter(sent.reply.status for sent in poor.sent) == {200: 20, 402: 130}
    assert [sent.reply.is_done for sent in rich.sent] == [True] * 150
    fleet.check()
