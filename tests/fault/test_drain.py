"""The end of a process: the first signal lets running requests end, the second ends them, and every charge is kept.

While it drains, the service takes nothing new and says so on the connections that it still accepts. Where a process
must end at once, its drain limit is far longer than any test waits.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tests.fault.test_kill import BEGUN, USAGE, WORDS
from tests.fault.test_stalled_store import COST_NANO, write_lock
from tests.ledger_reader import delivered_cost_nano, marked_costs_nano
from tests.load import ConnectionPool, chat_request
from tests.loopback import LoopbackUpstream, Pause, Whole
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

CREDIT_NANO = 10**10
SHORT_DRAIN_S = 1.0
LONG_DRAIN_S = 3600.0
MANY = 40
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
SIGNALS = [signal.SIGTERM, signal.SIGINT]
REQUESTS = [ChatRequest(number, stream=number % 4 != 0) for number in range(MANY)]

DeployDraining = Callable[[float], Deployment]
During = Callable[[list[asyncio.Task[Reply]]], Awaitable[None]]


@pytest.fixture
def drained_in(upstream: LoopbackUpstream) -> Iterator[DeployDraining]:
    """Makes a deployment whose processes give running requests so many seconds when they are told to end."""
    with contextlib.ExitStack() as running:

        def deploy(drain_s: float) -> Deployment:
            routes = {"forte": [RouteSpec("loopback", "loopback-forte")]}
            spec = ServiceSpec({"loopback": upstream.base_url}, routes, f"[server]\ndrain_s = {drain_s}\n")
            return running.enter_context(Deployment(spec, CREDIT_NANO))

        yield deploy


def run_during(
    deployment: Deployment, upstream: LoopbackUpstream, requests: Sequence[ChatRequest], happens: During
) -> list[Reply]:
    """What the clients saw in the end, if this happens while all requests are being answered."""
    delivered, have_begun = set[int](), asyncio.Event()
    streams = {request.number for request in requests if request.stream}

    async def one(request: ChatRequest) -> Reply:
        async def note(reply: Reply) -> bool:
            if request.stream and reply.text.startswith(BEGUN):
                delivered.add(request.number)
                if delivered == streams:
                    have_begun.set()
            return False

        return await send(deployment.processes[0].port, deployment.key, request, note)

    async def run() -> list[Reply]:
        replies = [asyncio.create_task(one(request)) for request in requests]
        await asyncio.to_thread(upstream.wait_for_request, len(requests))
        await have_begun.wait()
        await happens(replies)
        return await asyncio.gather(*replies)

    return asyncio.run(run())


async def start_draining(process: ServiceProcess) -> None:
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(wait_until, process.is_draining, "/readyz saying that it drains")


def check_charged_as_delivered(
    deployment: Deployment, requests: Sequence[ChatRequest], replies: Sequence[Reply]
) -> None:
    """Each client was charged for what it got, and no hold is open, although no other process has swept."""
    deployment.ledger.check()
    rows = deployment.ledger.rows()
    for request, reply in zip(requests, replies, strict=True):
        delivered_nano = delivered_cost_nano("forte", request.content, reply.chunks)
        assert rows[request.request_id].cost_nano == (COST_NANO if reply.is_done else delivered_nano), request
    assert CREDIT_NANO - deployment.ledger.balance_nano == sum(row.cost_nano or 0 for row in rows.values())


def check_cut(request: ChatRequest, reply: Reply) -> None:
    """A stream ends with an error event and without [DONE], a plain request with a 429 that says when to retry."""
    assert not reply.is_done
    if request.stream:
        assert reply.text == BEGUN
        assert reply.events[-1]["error"]["type"] == "api_error"
    else:
        assert reply.status == 429, reply.raw
        assert int(reply.headers["retry-after"]) >= 1


def test_drain_lets_running_requests_end_and_takes_no_new_ones(
    drained_in: DeployDraining, upstream: LoopbackUpstream
) -> None:
    """Running requests end whole and are charged, new ones get 429 with Retry-After, and the exit code is 0."""
    deployment, pause = drained_in(LONG_DRAIN_S), Pause()
    process = deployment.start()
    upstream.always(Whole(WORDS, USAGE, pause))

    async def drain(replies: list[asyncio.Task[Reply]]) -> None:
        kept = ConnectionPool(process.port)
        assert (await kept.ask(HEALTH)).status == 200
        await start_draining(process)
        assert process.get("/healthz")[0] == 200
        for request in (ChatRequest(MANY), ChatRequest(MANY + 1, stream=True)):
            refused = await send(process.port, deployment.key, request)
            assert refused.status == 429
            assert b'"type":"rate_limit_error"' in refused.body
            assert int(refused.headers["retry-after"]) >= 1
            assert int(refused.headers["retry-after-ms"]) >= 1
        on_kept = await kept.ask(chat_request(deployment.key))
        assert (on_kept.status, on_kept.headers["connection"]) == (429, "close")
        assert not any(reply.done() for reply in replies)
        pause.release()

    replies = run_during(deployment, upstream, REQUESTS, drain)
    assert process.wait_until_ended() == 0
    assert [reply.is_done for reply in replies] == [True] * MANY
    assert len(upstream.requests) == MANY
    check_charged_as_delivered(deployment, REQUESTS, replies)
    assert deployment.ledger.charges == MANY


@pytest.mark.parametrize("drain_s", [SHORT_DRAIN_S, LONG_DRAIN_S], ids=["at the limit", "at the second signal"])
def test_cut_requests_are_charged_as_delivered(
    drained_in: DeployDraining, upstream: LoopbackUpstream, drain_s: float
) -> None:
    """At the limit, and at once after a second signal, streams end with an error event; what they got is charged."""
    deployment = drained_in(drain_s)
    process = deployment.start()
    upstream.always(Whole(WORDS, USAGE, Pause()))
    began_s = 0.0

    async def drain(_replies: list[asyncio.Task[Reply]]) -> None:
        nonlocal began_s
        began_s = time.monotonic()
        if drain_s == LONG_DRAIN_S:
            await start_draining(process)
        process.send_signal(signal.SIGINT)

    replies = run_during(deployment, upstream, REQUESTS, drain)
    assert process.wait_until_ended() == 0
    assert drain_s == LONG_DRAIN_S or time.monotonic() - began_s >= drain_s
    for request, reply in zip(REQUESTS, replies, strict=True):
        check_cut(request, reply)
    check_charged_as_delivered(deployment, REQUESTS, replies)


def test_idle_process_ends_at_once(drained_in: DeployDraining) -> None:
    """With no request running the process ends with 0 at once, although a client keeps a connection open."""
    deployment = drained_in(LONG_DRAIN_S)

    async def end(process: ServiceProcess, number: signal.Signals) -> int:
        kept = ConnectionPool(process.port)
        assert (await kept.ask(HEALTH)).status == 200
        process.send_signal(number)
        return await asyncio.to_thread(process.wait_until_ended)

    for process, number in zip(deployment.start_many(len(SIGNALS)), SIGNALS, strict=True):
        assert asyncio.run(end(process, number)) == 0


def test_signal_during_the_start_ends_it(drained_in: DeployDraining) -> None:
    """A process that is told to end while it starts ends, before or after it installs handlers; the next one serves."""
    deployment = drained_in(LONG_DRAIN_S)
    earlier, later = deployment.begin(), deployment.begin()
    earlier.send_signal(signal.SIGTERM)
    wait_until(lambda: "Cadenza is running" in later.output, "the screen")
    later.send_signal(signal.SIGTERM)
    for process in (earlier, later):
        assert process.wait_until_ended() in {0, -signal.SIGTERM}, process.output
        assert "Traceback" not in process.output
    assert asyncio.run(send(deployment.start().port, deployment.key, ChatRequest(1))).is_done
    deployment.ledger.check()


@pytest.mark.slow(reason="waits until the process gives up its store")
def test_stalled_store_does_not_keep_a_process_from_ending(
    drained_in: DeployDraining, upstream: LoopbackUpstream
) -> None:
    """A process whose store is locked ends all the same; what it could not charge is charged by the next one."""
    deployment = drained_in(SHORT_DRAIN_S)
    process = deployment.start()
    upstream.always(Whole(WORDS, USAGE, Pause()))
    requests = [ChatRequest(number, stream=True) for number in range(4)]

    async def drain(_replies: list[asyncio.Task[Reply]]) -> None:
        marked = len(requests) * (len(WORDS) - 1)
        await asyncio.to_thread(wait_until, lambda: deployment.ledger.marked_tokens() == marked, "every mark")
        with write_lock(deployment.store):
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait_until_ended) == 0

    replies = run_during(deployment, upstream, requests, drain)
    for request, reply in zip(requests, replies, strict=True):
        check_cut(request, reply)
    assert deployment.ledger.reserves == 1
    deployment.start()
    deployment.ledger.check()
    for request in requests:
        row = deployment.ledger.rows()[request.request_id]
        assert row.cost_nano in marked_costs_nano("forte", request.content, BEGUN), request
