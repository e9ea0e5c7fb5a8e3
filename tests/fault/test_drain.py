"""The end of a process: the first signal lets what runs come to its end, the second one ends it, and both keep books.

While it drains, the service takes nothing new, and says so on connections that it still accepts.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tests.fault.books import delivered_cost_nano, usage_cost_nano
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.load import Lines, chat_request
from tests.fault.replies import Whole, counts
from tests.fault.test_stalled_store import write_lock
from tests.fault.wire import Ask, Seen, send
from tests.loopback import LoopbackUpstream, Pause
from tests.service import RouteSpec, ServiceSpec

CREDIT_NANO = 10**10
WORDS = ["One", " two", " three", " four"]  # a token each
USAGE = counts(23, 9, 4)
COST_NANO = usage_cost_nano("forte", USAGE)
DRAIN_S = 1.0
QUICK_S = 5.0
PATIENCE_S = 40.0  # a lock is waited for, for 10 s, and twice at most
MANY = 40
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
SIGNALS = [signal.SIGTERM, signal.SIGINT]

StartDraining = Callable[[float], Fleet]
During = Callable[[list[asyncio.Task[Seen]]], Awaitable[None]]


@pytest.fixture
def drained_in(upstream: LoopbackUpstream) -> Iterator[StartDraining]:
    """A fleet whose processes give what runs so many seconds when they are told to end."""
    with contextlib.ExitStack() as running:

        def start(drain_s: float) -> Fleet:
            routes = {"forte": [RouteSpec("loopback", "loopback-forte")]}
            spec = ServiceSpec({"loopback": upstream.base_url}, routes, f"[server]\ndrain_s = {drain_s}\n")
            return running.enter_context(Fleet("", CREDIT_NANO, spec))

        yield start


def run_during(
    fleet: Fleet, node: Node, upstream: LoopbackUpstream, asks: Sequence[Ask], happens: During
) -> list[Seen]:
    """What the clients saw in the end, of requests that are all being answered when it happens."""
    delivered, is_begun = set[int](), asyncio.Event()
    streams = {ask.number for ask in asks if ask.stream}

    async def one(ask: Ask) -> Seen:
        async def note(seen: Seen) -> bool:
            if ask.stream and seen.text.startswith("".join(WORDS[:-1])):
                delivered.add(ask.number)
                if delivered == streams:
                    is_begun.set()
            return False

        return await send(node.port, fleet.key, ask, note)

    async def run() -> list[Seen]:
        replies = [asyncio.create_task(one(ask)) for ask in asks]
        await asyncio.to_thread(upstream.wait_for_request, len(asks))
        if streams:
            async with asyncio.timeout(QUICK_S):
                await is_begun.wait()
        await happens(replies)
        return await asyncio.gather(*replies)

    return asyncio.run(run())


def is_draining(node: Node) -> bool:
    return node.get("/readyz")[0] == 503


def check_charged_as_delivered(fleet: Fleet, asks: Sequence[Ask], replies: Sequence[Seen]) -> None:
    """To each client what it got, and not a hold more, though no other process has swept."""
    fleet.books.prove()
    rows = fleet.books.rows()
    for ask, seen in zip(asks, replies, strict=True):
        row = rows[ask.shown_id]
        assert row.cost_nano == (
            COST_NANO if seen.is_done else delivered_cost_nano("forte", ask.content, seen.chunks)
        ), ask
    assert CREDIT_NANO - fleet.books.balance_nano == sum(row.cost_nano or 0 for row in rows.values())


def check_cut(ask: Ask, seen: Seen) -> None:
    """A stream ends with an error event and without [DONE], all else with a 429 that says when to come back."""
    assert not seen.is_done
    if ask.stream:
        assert seen.text == "".join(WORDS[:-1])
        assert seen.events[-1]["error"]["type"] == "api_error"
    else:
        assert seen.status == 429, seen.raw
        assert int(seen.headers["retry-after"]) >= 1


def test_drain_under_load_lets_all_end_and_takes_nothing_new(
    drained_in: StartDraining, upstream: LoopbackUpstream
) -> None:
    """What runs ends whole and is charged, what is new gets 429 with Retry-After, and the process ends with 0."""
    fleet, pause = drained_in(30), Pause()
    node = fleet.start()
    upstream.always(Whole(WORDS, USAGE, pause))
    asks = [Ask(count, stream=count % 4 != 0) for count in range(MANY)]

    async def drain(replies: list[asyncio.Task[Seen]]) -> None:
        kept = Lines(node.port)
        assert (await kept.ask(HEALTH)).status == 200
        node.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: is_draining(node), "/readyz saying that it drains")
        assert node.get("/healthz")[0] == 200
        for ask in (Ask(MANY), Ask(MANY + 1, stream=True)):
            refused = await send(node.port, fleet.key, ask)
            assert refused.status == 429
            assert b'"type":"rate_limit_error"' in refused.body
            assert int(refused.headers["retry-after"]) >= 1
            assert int(refused.headers["retry-after-ms"]) >= 1
        on_kept = await kept.ask(chat_request(fleet.key))
        assert (on_kept.status, on_kept.headers["connection"]) == (429, "close")
        assert not any(reply.done() for reply in replies)
        pause.release()

    replies = run_during(fleet, node, upstream, asks, drain)
    assert node.wait_until_ended() == 0
    assert [seen.is_done for seen in replies] == [True] * MANY
    assert len(upstream.requests) == MANY
    check_charged_as_delivered(fleet, asks, replies)
    assert fleet.books.charges == MANY


def test_drain_limit_cuts_what_still_runs(drained_in: StartDraining, upstream: LoopbackUpstream) -> None:
    """At the limit, after Ctrl-C as well, streams are cut with an error event and charged for what was delivered."""
    fleet = drained_in(DRAIN_S)
    node = fleet.start()
    upstream.always(Whole(WORDS, USAGE, Pause()))
    asks = [Ask(count, stream=count % 4 != 0) for count in range(MANY)]
    signalled_s = 0.0

    async def drain(_replies: list[asyncio.Task[Seen]]) -> None:
        nonlocal signalled_s
        signalled_s = time.monotonic()
        node.send_signal(signal.SIGINT)

    replies = run_during(fleet, node, upstream, asks, drain)
    assert node.wait_until_ended(DRAIN_S + QUICK_S) == 0
    assert time.monotonic() - signalled_s >= DRAIN_S
    for ask, seen in zip(asks, replies, strict=True):
        check_cut(ask, seen)
    check_charged_as_delivered(fleet, asks, replies)


def test_second_signal_is_quick_and_loses_nothing(drained_in: StartDraining, upstream: LoopbackUpstream) -> None:
    """The second signal ends all that runs at once; what was delivered is charged before the process ends."""
    fleet = drained_in(30)
    node = fleet.start()
    upstream.always(Whole(WORDS, USAGE, Pause()))
    asks = [Ask(count, stream=count % 4 != 0) for count in range(MANY)]

    async def insist(_replies: list[asyncio.Task[Seen]]) -> None:
        node.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: is_draining(node), "/readyz saying that it drains")
        node.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(node.wait_until_ended, QUICK_S) == 0

    replies = run_during(fleet, node, upstream, asks, insist)
    for ask, seen in zip(asks, replies, strict=True):
        check_cut(ask, seen)
    check_charged_as_delivered(fleet, asks, replies)


def test_idle_process_ends_at_once(drained_in: StartDraining) -> None:
    """With nothing to wait for it ends with 0 and at once, though a client keeps a connection."""
    fleet = drained_in(30)

    async def end(node: Node, number: signal.Signals) -> int:
        kept = Lines(node.port)
        assert (await kept.ask(HEALTH)).status == 200
        node.send_signal(number)
        return await asyncio.to_thread(node.wait_until_ended, QUICK_S)

    for node, number in zip(fleet.start_many(len(SIGNALS)), SIGNALS, strict=True):
        assert asyncio.run(end(node, number)) == 0


def test_signal_during_the_start_ends_it(drained_in: StartDraining) -> None:
    """Told to end while it starts, a process ends soon, whether or not it heard the signal, and the next one serves."""
    fleet = drained_in(30)
    earlier, later = fleet.begin(), fleet.begin()
    earlier.send_signal(signal.SIGTERM)
    wait_until(lambda: "Cadenza is running" in later.output, "the screen")
    later.send_signal(signal.SIGTERM)
    for node in (earlier, later):
        assert node.wait_until_ended() in {0, -signal.SIGTERM}, node.output
        assert "Traceback" not in node.output
    assert asyncio.run(send(fleet.start().port, fleet.key, Ask(1))).is_done
    fleet.books.prove()


def test_stalled_store_does_not_hold_a_process_for_ever(drained_in: StartDraining, upstream: LoopbackUpstream) -> None:
    """A process whose store takes nothing ends all the same; what it could not charge is charged by the next one."""
    fleet = drained_in(DRAIN_S)
    node = fleet.start()
    upstream.always(Whole(WORDS, USAGE, Pause()))
    asks = [Ask(count, stream=True) for count in range(4)]

    async def drain(_replies: list[asyncio.Task[Seen]]) -> None:
        due = len(asks) * (len(WORDS) - 1)
        await asyncio.to_thread(wait_until, lambda: fleet.books.marked_tokens() == due, "every mark")
        with write_lock(fleet.store):
            node.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.wait_until_ended, PATIENCE_S) == 0

    replies = run_during(fleet, node, upstream, asks, drain)
    for ask, seen in zip(asks, replies, strict=True):
        check_cut(ask, seen)
    assert fleet.books.open_holds == len(asks)
    fleet.start()
    check_charged_as_delivered(fleet, asks, replies)
