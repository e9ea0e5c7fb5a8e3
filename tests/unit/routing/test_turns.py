"""The order in which routes are asked: by order, then in turns by weight; resting routes last, full ones not at all."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.breaker import FAULTS_TO_OPEN
from cadenza.core.errors import RateLimited, UpstreamFailed
from cadenza.core.faults import FaultKind
from cadenza.core.records import Plan
from cadenza.upstreams.base import Fault
from tests.unit.routing.scripted_upstreams import WHOLE, ScriptedRoutes, scripted_routes

FAILED = Fault(FaultKind.FAILED, 500)


def weighted_routes(*weights: int) -> ScriptedRoutes:
    """Routes of one order that all answer."""
    return scripted_routes(*[WHOLE] * len(weights), orders=[0] * len(weights), weights=weights)


async def until_in_flight(routes: ScriptedRoutes, count: int) -> None:
    """Wait until so many requests have a place on a route."""
    while routes.in_flight < count:  # noqa: ASYNC110 the next turns of the event loop bring them there
        await asyncio.sleep(0)


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=5), rounds=st.integers(1, 3))
def test_turns_follow_any_weights(weights: list[int], rounds: int) -> None:
    """After as many requests as the sum of all weights each route had its weight; until then none is far from it."""

    async def serve() -> None:
        routes, total = weighted_routes(*weights), sum(weights)
        for number in range(1, rounds * total + 1):
            await routes.ask()
            for asks, weight in zip(routes.asks, weights, strict=True):
                assert abs(asks - number * weight / total) < len(weights)
        assert routes.asks == [rounds * weight for weight in weights]

    asyncio.run(serve())


async def test_each_class_takes_its_own_turns() -> None:
    """Two classes on the same routes do not disturb each other's turns."""
    routes = weighted_routes(1, 1)
    mezzo = Plan.of("mezzo", routes.plan.routes)
    served = [(await routes.ask(), await routes.ask(plan=mezzo)) for _ in range(4)]
    assert all(of_forte == of_mezzo for of_forte, of_mezzo in served)
    assert all(first != second for (first, _), (second, _) in pairwise(served))


async def test_a_full_route_is_passed_over() -> None:
    """Requests above a route's ceiling go to the next route."""
    routes = scripted_routes(WHOLE, WHOLE, ceiling=3)
    async with AsyncExitStack() as stack:
        assert [await routes.hold(stack) for _ in range(5)] == ["provider-0"] * 3 + ["provider-1"] * 2
    assert routes.in_flight == 0
    assert await routes.ask() == "provider-0"


async def test_all_full_is_429() -> None:
    """When every route is at its ceiling, the client is told to retry, and the refusal is counted."""
    routes = scripted_routes(WHOLE, WHOLE, ceiling=2)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await routes.hold(stack)
        assert isinstance(await routes.fail(), RateLimited)
    assert routes.count("cadenza_refused_total", reason="routes") == 1


async def test_when_all_routes_rest_each_takes_one_request_at_a_time() -> None:
    """Each resting route is a last resort for one request; the others get an answer at once."""
    routes, answers = scripted_routes(WHOLE, WHOLE), [asyncio.Event(), asyncio.Event()]
    for number, upstream in enumerate(routes.upstreams.values()):
        routes.rest(number)
        upstream.answer_with(answers[number])
    trials = [asyncio.create_task(routes.ask()) for _ in range(2)]
    await until_in_flight(routes, 2)
    assert isinstance(await routes.fail(), UpstreamFailed)
    for answer in answers:
        answer.set()
    await asyncio.gather(*trials)
    assert sorted(routes.answered_by) == ["provider-0", "provider-1"]
    assert await routes.ask() == "provider-0"


async def test_the_last_resort_comes_after_all_usable_routes() -> None:
    """A resting route is asked only after every other has failed, whatever its order."""
    routes = scripted_routes(WHOLE, FAILED)
    routes.rest(0)
    assert await routes.ask() == "provider-0"
    assert routes.asks == [1, 1]


async def test_a_route_is_not_asked_twice_in_one_request() -> None:
    """The fault that makes a route rest does not make it the last resort of the same request."""
    routes = scripted_routes(FAILED)
    for number in range(1, FAULTS_TO_OPEN + 1):
        await routes.fail()
        assert routes.asks == [number]
    assert routes.health(0).is_down


async def test_the_places_of_a_route_are_shared_fairly() -> None:
    """A key that has taken every place leaves the next free one to a key that was refused."""
    routes = scripted_routes(WHOLE, ceiling=4)
    async with AsyncExitStack() as greedy, AsyncExitStack() as modest:
        last = await greedy.enter_async_context(AsyncExitStack())
        for stack in (greedy, greedy, greedy, last):
            await routes.hold(stack, "greedy")
        assert isinstance(await routes.fail("modest"), RateLimited)
        await last.aclose()
        assert isinstance(await routes.fail("greedy"), RateLimited)
        assert await routes.hold(modest, "modest") == "provider-0"
    assert routes.in_flight == 0
