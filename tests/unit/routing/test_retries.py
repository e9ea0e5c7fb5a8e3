"""The retry budget, of a request and of the process, and what a client is told in every mixture of failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import RateLimited, UpstreamFailed
from cadenza.core.faults import FaultKind
from cadenza.core.rates import RETRIES_PER_REQUEST, RetryBudget
from cadenza.routing.dispatch import RETRIES_MAX
from cadenza.upstreams.base import Fault
from tests.unit.routing.scripted_upstreams import WHOLE, scripted_routes

BUSY = Fault(FaultKind.BUSY, 429)
FAILED = Fault(FaultKind.FAILED, 500)


async def test_a_request_has_a_maximum_of_retries() -> None:
    """After RETRIES_MAX retries a request fails, although more routes are left."""
    routes = scripted_routes(*[FAILED] * 10)
    assert isinstance(await routes.fail(), UpstreamFailed)
    assert sum(routes.asks) == 1 + RETRIES_MAX
    assert routes.in_flight == 0


@given(most=st.integers(1, 50), moves=st.lists(st.booleans(), max_size=300))
def test_no_more_retries_are_spent_than_were_earned(most: int, moves: list[bool]) -> None:
    """In any order of requests and retries, the budget pays for what it began with and has earned since."""
    budget, earned, spent = RetryBudget(most), 0.0, 0
    for earns in moves:
        if earns:
            budget.earn()
            earned += RETRIES_PER_REQUEST
        else:
            spent += budget.spend()
        assert spent <= most + earned + 1e-6


def test_a_lower_maximum_counts_at_once() -> None:
    """Retries saved above a new maximum are lost; a higher maximum gives none away."""
    budget = RetryBudget(10)
    budget.change_most(3)
    assert [budget.spend() for _ in range(4)] == [True] * 3 + [False]
    budget.change_most(10)
    assert not budget.spend()


def test_the_budget_is_earned_by_requests() -> None:
    """Once it is spent, there is one retry for every five requests."""
    budget = RetryBudget(1)
    assert budget.spend()
    made = 0
    for _ in range(100):
        budget.earn()
        made += budget.spend()
    assert made == pytest.approx(100 * RETRIES_PER_REQUEST, abs=1)


async def test_a_fault_does_not_become_a_retry_storm() -> None:
    """When one of two routes fails, retries stay within the budget until it rests; the other requests fail at once."""
    routes = scripted_routes(FAILED, WHOLE, ceiling=1)
    results = []
    for _ in range(20):
        try:
            results.append(await routes.ask() == "provider-1")
        except UpstreamFailed:
            results.append(False)
    assert results == [True, False, False, False, False, *[True] * 15]
    assert routes.asks == [5, 16]
    for result, count in (("made", 1), ("refused", 4)):
        assert routes.count("cadenza_retries_total", result=result) == count
    assert routes.in_flight == 0


async def test_going_on_from_a_busy_route_costs_no_retry() -> None:
    """Beside a route that is always busy, every request is served by the next one, and the busy one soon rests."""
    routes = scripted_routes(BUSY, WHOLE, ceiling=1)
    for _ in range(200):
        assert await routes.ask() == "provider-1"
    assert routes.asks == [5, 200]
    assert not routes.count("cadenza_retries_total", result="made")


async def test_a_route_that_rests_by_hand_is_not_asked() -> None:
    """The next route serves. If that is busy the client gets 429, and if all rest the error of a class that is down."""
    routes = scripted_routes(WHOLE, WHOLE)
    first, second = (route.name for route in routes.plan.routes)
    routes.dispatcher.health.rest({first: 60_000}, 0)
    assert await routes.ask() == "provider-1"
    routes.upstreams["provider-1"].answer_with(BUSY)
    assert isinstance(await routes.fail(), RateLimited)
    routes.dispatcher.health.rest({first: 60_000, second: 60_000}, 0)
    assert isinstance(await routes.fail(), UpstreamFailed)
    assert routes.asks == [0, 2]


async def test_the_client_is_told_the_shortest_wait() -> None:
    """Of the waits of resting routes and of routes that were asked, the client is told the shortest."""
    routes = scripted_routes(WHOLE, Fault(FaultKind.BUSY, 429, 6.0), WHOLE)
    for number, wait_s in ((0, 9.0), (2, 4.0)):
        routes.rest(number, Fault(FaultKind.BUSY, 429, wait_s))
        routes.fill(number)
    assert dict((await routes.fail()).headers)[b"retry-after"] == b"4"
