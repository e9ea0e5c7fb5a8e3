"""From a plan to an open reply: the next route after a fault, one error when none is left, and nothing left open."""

import asyncio

import pytest

from cadenza.core.errors import CadenzaError
from cadenza.core.faults import FaultKind
from cadenza.routing.dispatch import Dispatch
from cadenza.upstreams.base import Collector, Fault
from tests.unit.routing.scripted_upstreams import (
    ASK,
    KEY,
    REQUEST_ID,
    WHOLE,
    Answer,
    ScriptedRoutes,
    ScriptedUpstream,
    prompt_of,
    scripted_routes,
)


async def until_in_flight(routes: ScriptedRoutes) -> None:
    """Wait until a request has a place on a route."""
    while not routes.in_flight:  # noqa: ASYNC110 the next turns of the event loop bring it there
        await asyncio.sleep(0)


async def test_the_reply_is_closed_on_cancellation() -> None:
    """A cancelled request closes its reply."""
    routes = scripted_routes(WHOLE)
    is_open = asyncio.Event()

    async def work() -> None:
        async with routes.open():
            is_open.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await is_open.wait()
    assert routes.open_replies == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert routes.open_replies == 0


async def test_an_error_of_our_own_is_not_retried() -> None:
    """An exception other than a Fault is not hidden by asking the next route."""
    routes = scripted_routes(ZeroDivisionError(), WHOLE)
    with pytest.raises(ZeroDivisionError):
        async with routes.open():
            pytest.fail("a route answered")
    assert routes.asks == [1, 0]


@pytest.mark.parametrize(
    "answer",
    [WHOLE, [Fault(FaultKind.TRUNCATED)], Fault(FaultKind.TIMED_OUT), ZeroDivisionError()],
    ids=["error while open", "broken off", "fault", "error of our own"],
)
async def test_the_place_is_given_back_in_every_ending(answer: Answer) -> None:
    """However a request ends, the route has nothing in flight afterwards."""
    routes = scripted_routes(answer)

    async def use() -> None:
        async with routes.open() as reply:
            assert routes.in_flight == 1
            await reply.deliver(Collector())
            raise KeyError

    with pytest.raises((CadenzaError, ZeroDivisionError, KeyError)):
        await use()
    assert routes.in_flight == 0


@pytest.mark.parametrize("is_trial", [False, True])
async def test_the_place_is_given_back_when_opening_is_cancelled(is_trial: bool) -> None:
    """A request that is cancelled before the first token frees its place, and the route can be tried again."""
    routes = scripted_routes(asyncio.Event())
    if is_trial:
        routes.rest(0)
        routes.now_s += 60
    task = asyncio.create_task(routes.ask())
    await until_in_flight(routes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert routes.in_flight == 0
    routes.upstreams["provider-0"].answer_with(WHOLE)
    assert await routes.ask() == "provider-0"


async def test_a_request_keeps_the_upstreams_of_its_own_snapshot() -> None:
    """A reload does not change where a request goes that was planned before it."""
    routes, old, new = scripted_routes(WHOLE), ScriptedUpstream(WHOLE), ScriptedUpstream(WHOLE)
    before, after = (
        Dispatch(routes.plan, ASK, prompt_of(10), {"provider-0": upstream}, KEY, REQUEST_ID) for upstream in (old, new)
    )
    routes.dispatcher.reset(100)
    for wanted in (after, before):
        async with routes.open_dispatch(wanted):
            pass
    assert (len(old.asked), len(new.asked)) == (1, 1)


async def test_after_a_reload_no_route_rests() -> None:
    """An operator who changed the configuration sees its effect at once."""
    routes = scripted_routes(WHOLE, WHOLE)
    routes.rest(0)
    routes.dispatcher.reset(100)
    assert await routes.ask() == "provider-0"
