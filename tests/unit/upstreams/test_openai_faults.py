"""Every reply that is not a complete answer ends with a Fault of a known kind."""

import asyncio
from typing import Any

import pytest

from cadenza.core.errors import RateLimited
from cadenza.core.faults import FaultKind
from cadenza.upstreams.base import Fault, ReplyBounds
from cadenza.upstreams.errors import RETRY_AFTER_S_MAX, classify_status
from tests.loopback import (
    Close,
    Cut,
    Json,
    LoopbackUpstream,
    Pause,
    Reply,
    Reset,
    Sse,
    Status,
    chunk,
    completion,
    http_head,
    said,
)
from tests.loopback import Raw as RawReply
from tests.loopback.chunks import framed, sse_event
from tests.unit.http.peer import no_files_left
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.asks import FINISH, ROLE, STREAMING, RecordingSink, fault_of, make_ask, opened, route, running

MIB = 1024 * 1024

STATUSES = {
    FaultKind.INVALID: [400, 413, 422],
    FaultKind.BUSY: [429],
    FaultKind.QUOTA: [402],
    FaultKind.UNAUTHORIZED: [401, 403],
    FaultKind.NOT_FOUND: [404],
    FaultKind.FAILED: [
        *(201, 202, 204, 206, 301, 302, 303, 304, 307, 308),
        *(405, 408, 409, 418, 431, 451),
        *(500, 501, 502, 503, 504, 529, 599, 999),
    ],
}


@pytest.mark.parametrize(("kind", "status"), [(kind, status) for kind, many in STATUSES.items() for status in many])
async def test_every_status_but_200_is_a_fault(upstream: LoopbackUpstream, kind: FaultKind, status: int) -> None:
    """The status alone decides the kind of fault; no text of the body is in it."""
    body = b"" if status in {204, 304} else b'{"secret": 1}'
    fault = await fault_of(upstream, Status(status, body), make_ask())
    assert (fault.kind, fault.status, fault.retry_after_s) == (kind, status, None)
    assert str(fault) == f"{kind.value} ({status})"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(upstream: LoopbackUpstream, status: int) -> None:
    """A redirect is a fault: prompts and the provider's key are sent only to the configured address."""
    redirect = Status(status, headers={"location": f"{upstream.base_url}/elsewhere"})
    assert (await fault_of(upstream, redirect)).kind is FaultKind.FAILED
    assert [request.path for request in upstream.requests] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("written", "wait_s"),
    [
        (None, None),
        (b"", None),
        (b"7", 7.0),
        (b" 7 ", 7.0),
        (b"0.5", 0.5),
        (b"0", 0.0),
        (b"-7", 0.0),
        (b"60", 60.0),
        (b"61", RETRY_AFTER_S_MAX),
        (b"9" * 400, None),
        (b"1e300", RETRY_AFTER_S_MAX),
        (b"inf", None),
        (b"-inf", None),
        (b"nan", None),
        (b"soon", None),
        (b"7 s", None),
        (b"\xff", None),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
    ids=str,
)
def test_retry_after_is_a_bounded_number_of_seconds(written: bytes | None, wait_s: float | None) -> None:
    """Retry-After is read as seconds, within bounds, for 429, 503 and 529; any other value is ignored."""
    assert [classify_status(status, written).retry_after_s for status in (429, 503, 529)] == [wait_s] * 3
    assert classify_status(500, written).retry_after_s is None


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def calling(count: int) -> dict[str, Any]:
    value = completion(None, "tool_calls")
    value["choices"][0]["message"]["tool_calls"] = [CALL] * count
    return value


BROKEN: dict[str, tuple[Reply, FaultKind]] = {
    "closed without a byte": (RawReply([Close()]), FaultKind.RESET),
    "reset without a byte": (RawReply([Reset()]), FaultKind.RESET),
    "closed inside the head": (RawReply([b"HTTP/1.1 200 OK\r\nco", Close()]), FaultKind.TRUNCATED),
    "not HTTP": (RawReply([b"SSH-2.0-OpenSSH_9.6\r\n", Close()]), FaultKind.TRUNCATED),
    "body closed": (Cut(Json(completion("Hello")), 40), FaultKind.TRUNCATED),
    "body reset": (Cut(Json(completion("Hello")), 40, Reset()), FaultKind.TRUNCATED),
    "body not JSON": (Status(200, b"<html>"), FaultKind.MALFORMED),
    "empty body": (Status(200), FaultKind.MALFORMED),
    "no choices": (Json({"choices": []}), FaultKind.MALFORMED),
    "error in a 200": (Json({"error": {"code": 429}}), FaultKind.BUSY),
    "body too large": (
        RawReply([http_head(200, {}), *[b" " * MIB] * (ReplyBounds.of(1_000).size_bytes // MIB + 1)]),
        FaultKind.OVERLONG,
    ),
    "too many calls": (Json(calling(ReplyBounds.of(1_000).events + 1)), FaultKind.OVERLONG),
    "too many calls in one event": (
        Sse([chunk({"tool_calls": [CALL] * (ReplyBounds.of(1_000).events + 1)})]),
        FaultKind.OVERLONG,
    ),
    "an event that is too large": (
        Sse([said("x" * ReplyBounds.of(1_000).size_bytes)]),
        FaultKind.OVERLONG,
    ),
    "stream closed": (Cut(Sse([said("Hi"), FINISH]), 300), FaultKind.TRUNCATED),
    "stream reset": (Sse([said("Hi"), Reset()]), FaultKind.TRUNCATED),
    "event too large": (Sse([said("Hi"), b"data: ", *[bytes(MIB)] * 9]), FaultKind.OVERLONG),
}


@pytest.mark.parametrize(("reply", "kind"), BROKEN.values(), ids=BROKEN)
async def test_an_incomplete_or_malformed_reply_is_a_fault(
    upstream: LoopbackUpstream, reply: Reply, kind: FaultKind
) -> None:
    """A reply that is not a complete answer ends with a Fault of its kind and never looks like success."""
    fault = await fault_of(upstream, reply)
    assert (fault.kind, str(fault).split(" ")[0]) == (kind, kind.value)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["close", "reset"])
async def test_the_pieces_before_a_fault_are_delivered(upstream: LoopbackUpstream, end: Close | Reset) -> None:
    """A reply that breaks off delivers its pieces once, then raises its fault, and raises it again when asked again."""
    pause, sink = Pause(), RecordingSink()
    upstream.always(Sse([said("one "), said("two"), pause, end]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai, opened(openai) as reply:
        delivery = asyncio.create_task(reply.deliver(sink))
        await until(lambda: sink.text == "one two")
        pause.release()
        with pytest.raises(Fault) as first:
            await delivery
        with pytest.raises(Fault) as second:
            await reply.deliver(sink)
    assert first.value.kind is FaultKind.TRUNCATED
    assert second.value is first.value
    assert sink.text == "one two"


async def test_running_out_of_files_is_not_the_fault_of_the_upstream(upstream: LoopbackUpstream) -> None:
    """The request is refused with 429, and no route is blamed."""
    async with running(upstream.base_url) as openai:
        with no_files_left(), pytest.raises(RateLimited):
            await openai.open(route(), STREAMING)


UNFINISHED = b"".join(map(sse_event, (ROLE, said("Hi"), FINISH))).removesuffix(b"\n\n")
SSE = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    "steps",
    [
        [http_head(200, SSE | {"transfer-encoding": "chunked"}), framed(UNFINISHED)],
        [http_head(200, SSE | {"content-length": str(len(UNFINISHED) + 2)}), UNFINISHED],
    ],
    ids=["chunked", "length"],
)
async def test_a_framed_stream_that_is_closed_within_its_last_event_is_cut(
    upstream: LoopbackUpstream, steps: list[bytes]
) -> None:
    """Its framing says that more was to come, so its unfinished last event does not count as the end."""
    fault = await fault_of(upstream, RawReply([*steps, Close()]))
    assert fault.kind is FaultKind.TRUNCATED
