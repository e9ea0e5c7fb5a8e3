"""Whose turn it is: order first, then shares by weight; who rests or is full is passed over, and asked last of all."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import RateLimited, UpstreamFailed
from cadenza.core.records import Plan
from cadenza.routing.health import FAULTS_TO_REST, REST_S_MIN
from cadenza.upstreams.base import Fault, FaultKind
from tests.unit.routing.fleet import Fleet, Reply

BUSY_7_S = Fault(FaultKind.BUSY, 429, 7.0)


def weighted(*weights: int, ceiling: int = 100) -> Fleet:
    """Routes of one order."""
    return Fleet(*[Reply()] * len(weights), orders=[0] * len(weights), weights=weights, ceiling=ceiling)


async def test_shares_are_exact_and_even() -> None:
    """Of 70 requests, weights 5:1:1 give exactly 50:10:10, and of any 7 in a row exactly 5:1:1."""
    fleet = weighted(5, 1, 1)
    served = [await fleet.ask() for _ in range(70)]
    assert fleet.asks == [50, 10, 10]
    for start in range(64):
        assert sorted(Counter(served[start : start + 7]).values()) == [1, 1, 5]


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=5), rounds=st.integers(1, 3))
def test_any_weights_are_exact(weights: list[int], rounds: int) -> None:
    """After as many requests as all weights together, each route has had its weight; before, none is far from it."""

    async def serve() -> None:
        fleet, total = weighted(*weights), sum(weights)
        for number in range(1, rounds * total + 1):
            await fleet.ask()
            for asks, weight in zip(fleet.asks, weights, strict=True):
                assert abs(asks - number * weight / total) < len(weights)
        assert fleet.asks == [rounds * weight for weight in weights]

    asyncio.run(serve())


async def test_order_comes_before_weight() -> None:
    """However great its weight, a route of a later order is not asked while one of an earlier order answers."""
    fleet = Fleet(Reply(), Reply(), Reply(), orders=[0, 0, 1], weights=[1, 1, 1000])
    for _ in range(10):
        await fleet.ask()
    assert fleet.asks == [5, 5, 0]


async def test_after_a_fault_the_others_of_its_order_come_first() -> None:
    """A fault leads to the next of the same order, and only then to a later one."""
    fleet = Fleet(Fault(FaultKind.FAILED, 500), Fault(FaultKind.FAILED, 500), Reply(), orders=[0, 0, 1])
    assert await fleet.ask() == "provider-2"
    assert fleet.asks == [1, 1, 1]


async def test_classes_take_their_own_turns() -> None:
    """Two classes on the same routes share each by its own count."""
    fleet = weighted(1, 1)
    mezzo = Plan.of("mezzo", fleet.plan.routes)
    served = [(await fleet.ask(), await fleet.ask(mezzo)) for _ in range(4)]
    assert all(forte == of_mezzo for forte, of_mezzo in served)
    assert all(first != second for (first, _), (second, _) in pairwise(served))


async def test_a_route_that_rests_is_passed_over_until_it_may_be_tried() -> None:
    """While it rests it is not asked at all; then one request tries it, and it has its turns again."""
    fleet = Fleet(Reply(), Reply())
    fleet.rest(0)
    assert {await fleet.ask() for _ in range(20)} == {"provider-1"}
    fleet.now_s += REST_S_MIN
    assert {await fleet.ask() for _ in range(5)} == {"provider-0"}


async def test_what_a_resting_route_leaves_is_shared_by_weight() -> None:
    """Where one of four rests, the other three share all of the load as their weights say."""
    fleet = weighted(5, 3, 1, 1)
    fleet.rest(0)
    for _ in range(100):
        await fleet.ask()
    assert fleet.asks == [0, pytest.approx(60, abs=2), pytest.approx(20, abs=2), pytest.approx(20, abs=2)]


async def test_a_full_route_is_passed_over() -> None:
    """What is more than its ceiling goes to the next route; when a place is free the first is asked again."""
    fleet = Fleet(Reply(), Reply(), ceiling=3)
    async with AsyncExitStack() as stack:
        assert [await fleet.hold(stack) for _ in range(5)] == ["provider-0"] * 3 + ["provider-1"] * 2
    assert fleet.in_flight == 0


async def test_all_full_is_429() -> None:
    """Where every route has as much as it may have, the client is told to come back."""
    fleet = Fleet(Reply(), Reply(), ceiling=2)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await fleet.hold(stack)
        assert isinstance(await fleet.fails(), RateLimited)
    assert fleet.metrics.registry.get_sample_value("cadenza_refused_total", {"reason": "routes"}) == 1


async def test_the_last_resort() -> None:
    """Where every route rests, each is still asked by one request at a time; the others get an answer at once."""
    fleet = Fleet(Reply(), Reply())
    fleet.rest(0)
    fleet.rest(1)
    for upstream in fleet.upstreams.values():
        upstream.answer = asyncio.Event()
    trials = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    while fleet.in_flight < 2:  # noqa: ASYNC110 the next turns of the loop bring them there
        await asyncio.sleep(0)
    assert isinstance(await fleet.fails(), UpstreamFailed)
    for upstream in fleet.upstreams.values():
        assert isinstance(upstream.answer, asyncio.Event)
        upstream.answer.set()
    assert await asyncio.gather(*trials) == ["provider-0", "provider-1"]
    assert await fleet.ask() == "provider-0"


async def test_the_last_resort_comes_after_all_that_are_fit() -> None:
    """A route that rests is asked only after every other has failed, whatever its order."""
    fleet = Fleet(Reply(), Fault(FaultKind.FAILED, 500))
    fleet.rest(0)
    assert await fleet.ask() == "provider-0"
    assert fleet.asks == [1, 1]


async def test_a_route_that_fails_in_this_very_request_is_not_asked_twice() -> None:
    """The fault that begins a rest does not make the route its own last resort."""
    fleet = Fleet(Fault(FaultKind.FAILED, 500))
    for number in range(1, FAULTS_TO_REST + 1):
        await fleet.fails()
        assert fleet.asks == [number]
    assert fleet.health(0).is_down


async def test_a_sole_route_that_wants_rest() -> None:
    """Told when to come back, the next request is still made; while it runs, the others get that time as their 429."""
    fleet = Fleet(Reply())
    fleet.rest(0, BUSY_7_S)
    fleet.upstreams["provider-0"].answer = waiting = asyncio.Event()
    trial = asyncio.create_task(fleet.ask())
    while not fleet.in_flight:  # noqa: ASYNC110 the next turns of the loop bring it there
        await asyncio.sleep(0)
    fleet.now_s += 3
    for _ in range(10):
        failure = await fleet.fails()
        assert isinstance(failure, RateLimited)
        assert dict(failure.headers)[b"retry-after"] == b"4"
    waiting.set()
    assert await trial == "provider-0"
    assert fleet.asks == [1]


async def test_the_places_of_a_route_are_shared_fairly() -> None:
    """A key that has taken every place leaves the next free one to a key that was refused, and not to itself."""
    fleet = Fleet(Reply(), ceiling=4)
    async with AsyncExitStack() as greedy, AsyncExitStack() as modest:
        last = await greedy.enter_async_context(AsyncExitStack())
        for stack in (greedy, greedy, greedy, last):
            await fleet.hold(stack, "greedy")
        assert isinstance(await fleet.fails("modest"), RateLimited)
        await last.aclose()
        assert isinstance(await fleet.fails("greedy"), RateLimited)
        assert await fleet.hold(modest, "modest") == "provider-0"
    assert fleet.in_flight == 0
