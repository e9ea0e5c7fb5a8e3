"""Replies that break off: the client leaves at every chunk, the upstream fails at every byte.

What was delivered is charged, no hold is left, and the next request is served. All tests share one deployment, so each
has request numbers of its own.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest

from tests.ledger_reader import (
    Row,
    delivered_cost_nano,
    left_cost_nano,
    usage_cost_nano,
)
from tests.loopback import (
    ROLE,
    STOP,
    Close,
    Cut,
    Event,
    LoopbackUpstream,
    Numbered,
    Pause,
    Raw,
    Request,
    Reset,
    Sse,
    Status,
    said,
    usage_of,
)
from tests.loopback import Reply as ScriptedReply
from tests.raw_client import ChatRequest, Reply, leave_after, send
from tests.service import Deployment, wait_until
from tests.service_config import classes_spec

CREDIT_NANO = 10**10
WORDS = ["Each", " of", " these", " words", " is", " a", " token", " and", " so", " are", " 火", "花", "."]
LAST_WORDS = WORDS[-3:]
USAGE = usage_of(31, 17, 5)
LEAVING, CUT_STREAM, CUT_PLAIN = 1_000, 2_000, 3_000  # the first number of a test


@pytest.fixture(scope="module")
def upstream() -> Iterator[LoopbackUpstream]:
    """An upstream of its own, so that its connections can be counted."""
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def running(upstream: LoopbackUpstream) -> Iterator[Deployment]:
    with Deployment(classes_spec(upstream.base_url), CREDIT_NANO) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def deployment(running: Deployment, upstream: LoopbackUpstream) -> Deployment:
    """Every route is healthy and nothing is scripted."""
    running.processes[0].reload()
    upstream.reset()
    return running


def send_one(deployment: Deployment, request: ChatRequest) -> Reply:
    return asyncio.run(send(deployment.processes[0].port, deployment.key, request))


def send_in_turn(deployment: Deployment, requests: Sequence[ChatRequest]) -> list[Reply]:
    """One after the other, because a route that keeps failing takes one request at a time."""

    async def run() -> list[Reply]:
        return [await send(deployment.processes[0].port, deployment.key, request) for request in requests]

    return asyncio.run(run())


def terse_stream(words: Sequence[str]) -> Sse:
    """A stream with usage in as few bytes as possible."""
    chunks: list[Event] = [{"choices": [{"delta": {"content": word}}]} for word in words]
    return Sse([*chunks, {"choices": [{"finish_reason": "stop"}]}, {"usage": USAGE}])


def terse_plain(text: str) -> Status:
    """A plain reply with usage in as few bytes as possible."""
    value = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": USAGE}
    return Status(200, json.dumps(value, separators=(",", ":")).encode())


def body_bytes(reply: ScriptedReply) -> int:
    _, *body = reply.steps(Request("POST", "/", {}, b"{}"))
    return sum(len(step) for step in body if isinstance(step, bytes))


def checked_rows(deployment: Deployment) -> dict[str, Row]:
    """The rows of all requests, once every hold has ended and the ledger was checked."""
    wait_until(deployment.ledger.is_given_back, "the return of every reserve")
    deployment.ledger.check()
    rows = deployment.ledger.rows()
    assert CREDIT_NANO - deployment.ledger.balance_nano == sum(row.cost_nano or 0 for row in rows.values())
    return rows


async def test_client_that_leaves_at_any_chunk_pays_for_what_it_got(
    deployment: Deployment, upstream: LoopbackUpstream
) -> None:
    """A client that leaves after some chunks pays for the prompt and their tokens; after none, for the prompt."""
    delivered = {LEAVING + count: WORDS[:count] for count in range(len(WORDS) + 1)}
    pauses = {number: Pause() for number in delivered}
    upstream.always(Numbered({n: Sse([ROLE, *map(said, words), pauses[n], STOP]) for n, words in delivered.items()}))

    async def leave(request: ChatRequest) -> Reply:
        async def at_the_pause(_reply: Reply) -> bool:
            await asyncio.to_thread(pauses[request.number].wait_until_reached)
            return True

        words = delivered[request.number]
        way = leave_after("".join(words)) if words else at_the_pause
        return await send(deployment.processes[0].port, deployment.key, request, way)

    replies = await asyncio.gather(*(leave(ChatRequest(number, stream=True)) for number in delivered))
    rows = checked_rows(deployment)
    for (number, words), reply in zip(delivered.items(), replies, strict=True):
        request = ChatRequest(number)
        assert reply.text == "".join(words)
        row = rows[request.request_id]
        assert row.cost_nano == left_cost_nano("forte", request.content, reply.chunks), number
        assert (row.status, row.state) == (499, "settled"), number
    wait_until(lambda: upstream.open_connections == 0, "every connection to the upstream being closed")


def test_client_that_leaves_before_a_plain_reply_pays_for_the_prompt(
    deployment: Deployment, upstream: LoopbackUpstream
) -> None:
    """A plain reply whose client left before it was complete costs the prompt: the upstream worked on it."""
    pause, request = Pause(), ChatRequest(1)
    upstream.script(Raw([pause]))

    async def at_the_pause(_reply: Reply) -> bool:
        await asyncio.to_thread(pause.wait_until_reached)
        return True

    port = deployment.processes[0].port
    assert asyncio.run(send(port, deployment.key, request, at_the_pause)).raw == b""
    assert checked_rows(deployment)[request.request_id].cost_nano == left_cost_nano("forte", request.content, [])


@pytest.mark.slow(reason="asks once for every byte")
def test_stream_that_is_cut_at_any_byte(deployment: Deployment, upstream: LoopbackUpstream) -> None:
    """A stream cut at any byte is either complete and charged as counted, or broken and charged as delivered."""
    whole = terse_stream(LAST_WORDS)
    sizes = range(body_bytes(whole) + 1)
    upstream.always(Numbered({CUT_STREAM + n: Cut(whole, n, Reset() if n % 2 else Close()) for n in sizes}))
    requests = [ChatRequest(CUT_STREAM + size, stream=True) for size in sizes]
    replies = send_in_turn(deployment, requests)
    assert len(upstream.requests) == len(requests)
    rows = checked_rows(deployment)
    for request, reply in zip(requests, replies, strict=True):
        check_cut_stream(request, reply, rows[request.request_id])
    assert not replies[0].is_done
    assert rows[requests[-2].request_id].cost_nano == usage_cost_nano("forte", USAGE)
    charged = [
        rows[request.request_id].cost_nano != 0 for request in requests if rows[request.request_id].status == 502
    ]
    assert 0 < sum(charged) < len(charged)
    upstream.reset()
    assert send_one(deployment, ChatRequest(CUT_STREAM + len(sizes), stream=True)).is_done


def check_cut_stream(request: ChatRequest, reply: Reply, row: Row) -> None:
    """The charge is the usage that the client was told and, without one, what the client got."""
    delivered_nano = delivered_cost_nano("forte", request.content, reply.chunks)
    if reply.is_done:
        assert reply.text == "".join(LAST_WORDS), request
        assert row.cost_nano == usage_cost_nano("forte", reply.usage), request
        assert row.cost_nano == (delivered_nano if row.estimated else usage_cost_nano("forte", USAGE)), request
        assert row.status == 200, request
    else:
        assert reply.status == (200 if reply.chunks else 502), request
        assert reply.status == 502 or reply.events[-1]["error"]["type"] == "api_error", request
        assert row.cost_nano == delivered_nano, request
        assert row.status == 502, request


@pytest.mark.slow(reason="asks once for every byte")
def test_plain_reply_that_is_cut_at_any_byte(deployment: Deployment, upstream: LoopbackUpstream) -> None:
    """A plain reply is charged as counted if every byte of it arrived, and costs nothing if one is missing."""
    whole = terse_plain("".join(LAST_WORDS))
    length = body_bytes(whole)
    upstream.always(Numbered({CUT_PLAIN + size: Cut(whole, size) for size in range(length + 1)}))
    requests = [ChatRequest(CUT_PLAIN + size) for size in range(length + 1)]
    replies = send_in_turn(deployment, requests)
    assert len(upstream.requests) == len(requests)
    rows = checked_rows(deployment)
    assert [reply.status for reply in replies] == [502] * length + [200]
    costs = [rows[request.request_id].cost_nano for request in requests]
    assert costs == [0] * length + [usage_cost_nano("forte", USAGE)]
    upstream.reset()
    assert send_one(deployment, ChatRequest(CUT_PLAIN + length + 1)).is_done
