"""From a plan to an open reply: the next route on a fault, one answer when none is left, and nothing left open."""

import asyncio
import json

import pytest

from cadenza.core.errors import CadenzaError, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.records import Plan, Route
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import BUSY_RETRY_S
from cadenza.upstreams.base import Fault, FaultKind
from tests.unit.routing.fleet import ASK, KEY, MODEL, Fleet, Reply

BUSY = FaultKind.BUSY


async def test_the_first_route_serves_where_it_can() -> None:
    """A route that answers is the only one asked, and comes with its reply."""
    fleet = Fleet(Reply(), Reply())
    async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY) as opened:
        assert opened.route is fleet.plan.routes[0]
    assert fleet.asks == [1, 0]


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.REFUSED])
async def test_after_a_fault_the_next_route_is_asked(kind: FaultKind) -> None:
    """Whatever went wrong, but for a refusal, another route may do better; each is asked once."""
    fleet = Fleet(Fault(kind), Fault(kind), Reply())
    async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY) as opened:
        assert opened.route.provider == "provider-2"
    assert fleet.asks == [1, 1, 1]


async def test_a_refusal_ends_the_search() -> None:
    """A request that one model finds fault with is not carried on to the others: it is a 400."""
    fleet = Fleet(Fault(FaultKind.FAILED, 500), Fault(FaultKind.REFUSED, 422), Reply())
    assert isinstance(await fleet.fails(), InvalidRequest)
    assert fleet.asks == [1, 1, 0]


@pytest.mark.parametrize(
    ("waits_s", "retry_after"),
    [([7.0, 3.0, 5.0], b"3"), ([None, 4.0], b"4"), ([None], b"%d" % BUSY_RETRY_S), ([0.0, 9.0], b"1")],
)
async def test_all_busy_is_429_with_the_smallest_wait(waits_s: list[float | None], retry_after: bytes) -> None:
    """Where every route lacks capacity, the client is told when the first may have some."""
    failure = await Fleet(*(Fault(BUSY, 429, wait_s) for wait_s in waits_s)).fails()
    assert isinstance(failure, RateLimited)
    assert dict(failure.headers)[b"retry-after"] == retry_after


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind not in {BUSY, FaultKind.REFUSED}])
@pytest.mark.parametrize("busy_first", [True, False])
async def test_a_mixture_of_faults_is_502(kind: FaultKind, *, busy_first: bool) -> None:
    """One route that failed otherwise is enough: we are not merely saturated."""
    faults = [Fault(BUSY, 429, 1.0), Fault(kind)]
    assert isinstance(await Fleet(*(faults if busy_first else faults[::-1])).fails(), UpstreamFailed)


@pytest.mark.parametrize("kind", FaultKind)
async def test_the_client_is_not_told_what_failed(kind: FaultKind) -> None:
    """No provider, model or status stands in the message."""
    message = (await Fleet(Fault(kind, 418)).fails()).message
    assert not any(word in message for word in ("provider", MODEL, "418"))


async def test_the_reply_is_closed_at_the_end() -> None:
    """Left in good order, nothing stays open."""
    fleet = Fleet(Fault(FaultKind.TRUNCATED), Reply())
    async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY):
        assert fleet.open_replies == 1
    assert fleet.open_replies == 0


async def test_the_reply_is_closed_on_an_error() -> None:
    """An error of the work inside closes the reply and comes out as it is."""
    fleet = Fleet(Reply())
    with pytest.raises(ZeroDivisionError):
        async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY):
            raise ZeroDivisionError
    assert fleet.open_replies == 0


async def test_the_reply_is_closed_on_cancellation() -> None:
    """A cancelled request closes its reply."""
    fleet = Fleet(Reply())
    is_open = asyncio.Event()

    async def work() -> None:
        async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY):
            is_open.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await is_open.wait()
    assert fleet.open_replies == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fleet.open_replies == 0


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(FaultKind.TRUNCATED, UpstreamFailed), (FaultKind.TIMED_OUT, UpstreamFailed), (BUSY, RateLimited)],
)
async def test_a_reply_that_breaks_off_unsent_is_answered_not_tried_again(
    kind: FaultKind, answer: type[CadenzaError]
) -> None:
    """A fault while the reply is read closes it, is noted and answered, and asks no other route."""
    fleet = Fleet(Reply(Fault(kind)), Reply())
    with pytest.raises(answer):
        async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY) as reply:
            await reply.read()
    assert fleet.asks == [1, 0]
    assert fleet.open_replies == 0
    assert json.loads(fleet.log.getvalue())["kind"] == kind.value


async def test_a_fault_of_our_own_is_not_an_upstream_fault() -> None:
    """What no upstream should raise is not hidden by asking the next route."""
    fleet = Fleet(ZeroDivisionError(), Reply())
    with pytest.raises(ZeroDivisionError):
        async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY):
            pytest.fail("nothing should have been opened")
    assert fleet.asks == [1, 0]


async def test_faults_are_logged_and_counted() -> None:
    """Each fault is a line of the log and a count by provider and kind."""
    fleet = Fleet(Fault(FaultKind.TIMED_OUT), Fault(FaultKind.FAILED, 503))
    await fleet.fails()
    lines = [json.loads(line) for line in fleet.log.getvalue().splitlines()]
    assert [(line["provider"], line["kind"], line["status"]) for line in lines] == [
        ("provider-0", "timed_out", None),
        ("provider-1", "failed", 503),
    ]
    for provider, kind in (("provider-0", "timed_out"), ("provider-1", "failed")):
        labels = {"provider": provider, "kind": kind}
        assert fleet.metrics.registry.get_sample_value("cadenza_upstream_faults_total", labels) == 1


async def test_the_place_is_given_back_in_every_ending() -> None:
    """After a good end, a fault, an error inside and a reply that breaks off no route has anything in flight."""

    async def use(fleet: Fleet) -> None:
        async with open_reply(fleet.dispatcher, fleet.plan, ASK, KEY) as reply:
            assert fleet.in_flight == 1
            await reply.read()
            raise KeyError

    for answer in (Reply(), Reply(Fault(FaultKind.TRUNCATED)), Fault(FaultKind.TIMED_OUT), ZeroDivisionError()):
        fleet = Fleet(answer)
        with pytest.raises((CadenzaError, ZeroDivisionError, KeyError)):
            await use(fleet)
        assert fleet.in_flight == 0


@pytest.mark.parametrize("rests", [False, True])
async def test_the_place_is_given_back_by_whoever_leaves_while_it_opens(rests: bool) -> None:
    """A request that is cancelled before the first word leaves no place taken, and the route may be tried again."""
    fleet = Fleet(asyncio.Event())
    if rests:
        fleet.rest(0)
        fleet.now_s += 60
    task = asyncio.create_task(fleet.ask())
    while not fleet.in_flight:  # noqa: ASYNC110 the next turns of the loop bring it there
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fleet.in_flight == 0
    fleet.upstreams["provider-0"].answer = Reply()
    assert await fleet.ask() == "provider-0"


async def test_a_provider_that_is_not_there_is_passed_over() -> None:
    """A route whose provider nobody knows is a fault like any other: the next one serves."""
    fleet = Fleet(Reply())
    stray = Route("nobody", MODEL, 1000, 100)
    assert await fleet.ask(Plan.of("forte", (stray, *fleet.plan.routes))) == "provider-0"


async def test_new_upstreams_are_fit() -> None:
    """Whoever changes the providers wants them tried: none rests any more."""
    fleet = Fleet(Reply(), Reply())
    fleet.rest(0)
    fleet.dispatcher.use(dict(fleet.upstreams), 100)
    assert await fleet.ask() == "provider-0"
