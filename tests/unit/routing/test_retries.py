"""The budget of retries, of a request and of the process, and what a client is told in every mixture of failures."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import CadenzaError, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.routing.dispatch import RETRIES_MAX, RETRIES_PER_REQUEST, RetryBudget
from cadenza.upstreams.base import Fault, FaultKind
from tests.unit.routing.fleet import KEY, Fleet, Reply

BUSY = Fault(FaultKind.BUSY, 429)
BUSY_9_S = Fault(FaultKind.BUSY, 429, 9.0)
FAILED = Fault(FaultKind.FAILED, 500)
REFUSED = Fault(FaultKind.REFUSED, 400)
STATES = ("busy", "failed", "refused", "asked to rest", "down", "full")


async def test_one_request_is_tried_so_often_and_no_more() -> None:
    """After RETRIES_MAX retries a request is given up, though more routes are left."""
    fleet = Fleet(*[FAILED] * 10)
    assert isinstance(await fleet.fails(), UpstreamFailed)
    assert sum(fleet.asks) == 1 + RETRIES_MAX
    assert fleet.in_flight == 0


@given(most=st.integers(1, 50), moves=st.lists(st.booleans(), max_size=300))
def test_the_budget_of_the_process(most: int, moves: list[bool]) -> None:
    """Whatever the order of things: no more is spent than was saved up at first and earned since, and it is kept so."""
    budget, earned, spent = RetryBudget(most), 0.0, 0
    for earns in moves:
        if earns:
            budget.earn()
            earned += RETRIES_PER_REQUEST
        else:
            spent += budget.spend()
        assert spent <= most + earned + 1e-6


def test_the_budget_is_not_saved_without_end() -> None:
    """A long quiet time does not pay for a storm: no more than the most is ever there."""
    budget = RetryBudget(10)
    for _ in range(10_000):
        budget.earn()
    assert [budget.spend() for _ in range(12)] == [True] * 10 + [False] * 2


def test_the_budget_is_earned_by_requests() -> None:
    """Once it is spent, one retry is there for every five requests."""
    budget = RetryBudget(1)
    assert budget.spend()
    made = 0
    for _ in range(100):
        budget.earn()
        made += budget.spend()
    assert made == pytest.approx(100 * RETRIES_PER_REQUEST, abs=1)


async def test_a_fault_does_not_become_a_storm() -> None:
    """Where one of two routes always says no, retries stay within the budget, and the others are told so at once."""
    fleet, ceiling, requests = Fleet(BUSY, Reply(), ceiling=10), 10, 200
    served = refused = 0
    for _ in range(requests):
        try:
            await fleet.ask()
            served += 1
        except RateLimited:
            refused += 1
    assert fleet.asks == [requests, served]
    assert served == pytest.approx(ceiling + requests * RETRIES_PER_REQUEST, abs=2)
    for result, count in (("made", served), ("refused", refused)):
        assert fleet.metrics.registry.get_sample_value("cadenza_retries_total", {"result": result}) == count
    assert fleet.in_flight == 0


async def test_passing_over_costs_no_retry() -> None:
    """A route that rests is passed over for nothing: the budget is for those that were asked and failed."""
    fleet = Fleet(Reply(), Reply(), ceiling=1)
    fleet.rest(0)
    for _ in range(20):
        assert await fleet.ask() == "provider-1"


@pytest.mark.parametrize("states", list(product(STATES, STATES)), ids=" then ".join)
async def test_what_the_client_is_told(states: tuple[str, str]) -> None:
    """A refusal is 400; where all that is wrong is a lack of room it is 429; where anything failed it is 502."""
    answers = {"busy": BUSY, "failed": FAILED, "refused": REFUSED}
    fleet = Fleet(*(answers.get(state, Reply()) for state in states), ceiling=8)
    for number, state in enumerate(states):
        if state in {"asked to rest", "down"}:
            fleet.rest(number, BUSY_9_S if state == "asked to rest" else None)
        if state in {"asked to rest", "down", "full"}:
            fleet.fill(number)
    expected: type[CadenzaError] = RateLimited
    if "refused" in states:
        expected = InvalidRequest
    elif {"failed", "down"} & set(states):
        expected = UpstreamFailed
    failure = await fleet.fails()
    assert type(failure) is expected
    assert (b"retry-after" in dict(failure.headers)) == (expected is RateLimited)


async def test_the_wait_of_the_client_is_the_shortest_there_is() -> None:
    """Of what routes that rest and routes that were asked say, the client is told the soonest."""
    fleet = Fleet(Reply(), Fault(FaultKind.BUSY, 429, 6.0), Reply())
    for number, wait_s in ((0, 9.0), (2, 4.0)):
        fleet.rest(number, Fault(FaultKind.BUSY, 429, wait_s))
        fleet.fill(number)
    assert dict((await fleet.fails()).headers)[b"retry-after"] == b"4"


async def test_a_route_in_its_trial_is_no_reason_to_despair() -> None:
    """While one request tries a route whose rest is over, the others are told to come back, not that all has failed."""
    fleet = Fleet(Reply())
    fleet.rest(0)
    fleet.now_s += 60
    assert fleet.health(0).begin(KEY)
    assert isinstance(await fleet.fails(), RateLimited)
