"""From a plan to an open reply: the next route after a fault, one error when none is left, and nothing left open."""

import asyncio

import pytest

from cadenza.core.errors import CadenzaError, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.faults import FaultKind
from cadenza.routing.dispatch import BUSY_RETRY_S, Dispatch
from cadenza.upstreams.base import Collector, Fault
from tests.unit.routing.scripted_upstreams import (
    ASK,
    KEY,
    MODEL,
    REQUEST_ID,
    WHOLE,
    Answer,
    ScriptedRoutes,
    ScriptedUpstream,
    prompt_of,
    scripted_routes,
)

BUSY = FaultKind.BUSY


async def until_in_flight(routes: ScriptedRoutes) -> None:
    """Wait until a request has a place on a route."""
    while not routes.in_flight:  # noqa: ASYNC110 the next turns of the event loop bring it there
        await asyncio.sleep(0)


async def test_the_first_route_is_the_only_one_asked_if_it_answers() -> None:
    """It is sent the ask for its own route, its pieces are delivered, and its name is reported."""
    routes, collector = scripted_routes(WHOLE, WHOLE), Collector()
    async with routes.open() as reply:
        assert routes.answered_by == ["provider-0"]
        await reply.deliver(collector)
    assert collector.pieces == list(WHOLE)
    assert routes.asks == [1, 0]
    first = routes.upstreams["provider-0"]
    assert (first.routes, first.asked) == ([routes.plan.routes[0]], [ASK])


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.INVALID])
async def test_after_a_fault_the_next_route_is_asked(kind: FaultKind) -> None:
    """After every fault except a refusal another route is tried; each is asked once."""
    routes = scripted_routes(Fault(kind), Fault(kind), WHOLE)
    assert await routes.ask() == "provider-2"
    assert routes.asks == [1, 1, 1]
    assert routes.answered_by == ["provider-2"]


async def test_a_refusal_ends_the_search() -> None:
    """A request that one model rejects as invalid is not sent to the next: it is a 400."""
    routes = scripted_routes(Fault(FaultKind.FAILED, 500), Fault(FaultKind.INVALID, 422), WHOLE)
    assert isinstance(await routes.fail(), InvalidRequest)
    assert routes.asks == [1, 1, 0]


@pytest.mark.parametrize(
    ("waits_s", "retry_after"),
    [([7.0, 3.0, 5.0], b"3"), ([None, 4.0], b"4"), ([None], b"%d" % BUSY_RETRY_S), ([0.0, 9.0], b"1")],
)
async def test_all_busy_is_429_with_the_smallest_wait(waits_s: list[float | None], retry_after: bytes) -> None:
    """When every route lacks capacity, the client is told when the first may have some."""
    failure = await scripted_routes(*(Fault(BUSY, 429, wait_s) for wait_s in waits_s)).fail()
    assert isinstance(failure, RateLimited)
    assert dict(failure.headers)[b"retry-after"] == retry_after


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind not in {BUSY, FaultKind.INVALID}])
@pytest.mark.parametrize("busy_first", [True, False])
async def test_a_mixture_of_faults_is_502(kind: FaultKind, *, busy_first: bool) -> None:
    """If one of the routes failed otherwise, the service is not merely saturated."""
    faults = [Fault(BUSY, 429, 1.0), Fault(kind)]
    assert isinstance(await scripted_routes(*(faults if busy_first else faults[::-1])).fail(), UpstreamFailed)


@pytest.mark.parametrize("kind", FaultKind)
async def test_the_client_is_not_told_what_failed(kind: FaultKind) -> None:
    """The message names no provider, model or status."""
    message = (await scripted_routes(Fault(kind, 418)).fail()).message
    assert not any(word in message for word in ("provider", MODEL, "418"))


async def test_the_reply_is_closed_at_the_end() -> None:
    """After a good end no reply is open."""
    routes = scripted_routes(Fault(FaultKind.TRUNCATED), WHOLE)
    async with routes.open():
        assert routes.open_replies == 1
    assert routes.open_replies == 0


async def test_the_reply_is_closed_on_an_error() -> None:
    """An error raised while the reply is open closes it and is passed on unchanged."""
    routes = scripted_routes(WHOLE)
    with pytest.raises(ZeroDivisionError):
        async with routes.open():
            raise ZeroDivisionError
    assert routes.open_replies == 0


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


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(FaultKind.TRUNCATED, UpstreamFailed), (FaultKind.TIMED_OUT, UpstreamFailed), (BUSY, RateLimited)],
)
async def test_a_reply_that_breaks_off_unsent_is_answered_and_not_retried(
    kind: FaultKind, answer: type[CadenzaError]
) -> None:
    """A fault while the reply is read is logged and becomes an error; no other route is asked."""
    routes = scripted_routes([Fault(kind)], WHOLE)
    with pytest.raises(answer):
        async with routes.open() as reply:
            await reply.deliver(Collector())
    assert routes.asks == [1, 0]
    assert routes.open_replies == 0
    assert [line["kind"] for line in routes.log_lines] == [kind.value]


async def test_an_error_of_our_own_is_not_retried() -> None:
    """An exception other than a Fault is not hidden by asking the next route."""
    routes = scripted_routes(ZeroDivisionError(), WHOLE)
    with pytest.raises(ZeroDivisionError):
        async with routes.open():
            pytest.fail("a route answered")
    assert routes.asks == [1, 0]


async def test_faults_are_logged_with_the_request_id_and_counted() -> None:
    """Each fault is a warning with request id, provider, kind and status, and a count by provider and kind."""
    routes = scripted_routes(Fault(FaultKind.TIMED_OUT), Fault(FaultKind.FAILED, 503))
    await routes.fail()
    lines = routes.log_lines
    assert all(line.pop("timestamp") for line in lines)
    fault = {"event": "upstream fault", "level": "warning", "request_id": REQUEST_ID}
    assert lines == [
        {**fault, "provider": "provider-0", "kind": "timed_out", "status": None},
        {**fault, "provider": "provider-1", "kind": "failed", "status": 503},
    ]
    for provider, kind in (("provider-0", "timed_out"), ("provider-1", "failed")):
        assert routes.count("cadenza_upstream_faults_total", provider=provider, kind=kind) == 1


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
