"""The OpenAI upstream: the body that it builds, how long it waits for what, and a Fault for every other end."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from cadenza.core.records import Route, Timeouts, Usage
from cadenza.upstreams.base import RETRY_AFTER_S_MAX, Ask, Fault, FaultKind, OpenReply, Piece, Probe, classify_status
from cadenza.upstreams.openai import AFTER_FINISH_S, PROBE_S, WHOLE_BYTES_MAX, OpenAIUpstream
from tests.loopback import (
    USAGE,
    Close,
    Cut,
    Event,
    Good,
    Json,
    LoopbackUpstream,
    Pause,
    Reply,
    Request,
    Reset,
    Sse,
    Status,
    Step,
    chunk,
    completion,
    http_head,
    said,
)
from tests.loopback import Raw as Said
from tests.unit.http.peer import Peer, Visit, full_listener, until
from tests.unit.upstreams.clock import Clock

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])
on_asyncio = pytest.mark.asyncio(loop_factories=["asyncio"])  # the loop whose clock can be put forward

MIB = 1024 * 1024
WAIT_S = 10.0
MESSAGE = Raw(b'{"role":"user",  "content":"h\\u00e9", "x_vendor": 1.50}')
TIMEOUTS = Timeouts(connect_s=100, first_token_s=200, idle_s=30, total_s=100_000)
SSE_HEAD = http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
ROLE = chunk({"role": "assistant", "content": ""})
FINISH = chunk(finish="stop")
COUNTS = chunk(choices=[], usage=USAGE)


def route(max_output_tokens: int = 1000, timeouts: Timeouts = TIMEOUTS) -> Route:
    return Route("provider", "large-7", 100_000, max_output_tokens, timeouts=timeouts)


def asking(max_tokens: int | None = None, *, stream: bool = False, **sampling: bytes) -> Ask:
    return Ask([MESSAGE], {name: Raw(value) for name, value in sampling.items()}, max_tokens, stream)


@asynccontextmanager
async def endpoint(base_url: str, api_key: str | None = None, dialect: str = "plain") -> AsyncIterator[OpenAIUpstream]:
    made = OpenAIUpstream(base_url, api_key, dialect)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def gather_pieces(made: OpenAIUpstream, where: Route, ask: Ask) -> list[Piece]:
    """Every piece of a reply that is read to its end."""
    pieces: list[Piece] = []
    async with made.open(where, ask) as reply:
        await read_into(pieces, reply)
    return pieces


async def read_into(pieces: list[Piece], reply: OpenReply) -> None:
    while read := await reply.read():
        pieces += read


async def ask_once(upstream: LoopbackUpstream, ask: Ask, dialect: str = "plain", max_output_tokens: int = 1000) -> Any:
    """The body that the upstream was sent."""
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url, dialect=dialect) as made:
        await gather_pieces(made, route(max_output_tokens), ask)
    return upstream.requests[0].json


async def fault_of(upstream: LoopbackUpstream, reply: Reply, ask: Ask | None = None) -> Fault:
    """The Fault that a reply ends in, at its opening or later."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        with pytest.raises(Fault) as failure:
            await gather_pieces(made, route(), ask or asking())
    assert failure.value.__cause__ is None
    return failure.value


async def test_the_body_of_an_ask(upstream: LoopbackUpstream) -> None:
    """The route's model, the messages and the sampling fields go out, and nothing that was not asked for."""
    body = await ask_once(upstream, asking(temperature=b"0.50", stop=b'["a","b"]'))
    message = {"role": "user", "content": "hé", "x_vendor": 1.5}
    assert body == {"model": "large-7", "messages": [message], "temperature": 0.5, "stop": ["a", "b"]}


async def test_raw_json_is_sent_byte_by_byte(upstream: LoopbackUpstream) -> None:
    """Messages and sampling fields are not decoded on the way: they arrive as they were written."""
    await ask_once(upstream, asking(temperature=b"0.50", seed=b"12345678901234567890"))
    for written in (bytes(MESSAGE), b'"temperature":0.50', b'"seed":12345678901234567890'):
        assert written in upstream.requests[0].body


@pytest.mark.parametrize(
    ("key", "authorization"), [("sk-1", "Bearer sk-1"), (None, None), ("", None)], ids=["key", "none", "empty"]
)
async def test_the_head_of_an_ask(upstream: LoopbackUpstream, key: str | None, authorization: str | None) -> None:
    """It is a JSON POST to the endpoint's chat completions, with the provider's key where there is one."""
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url, key) as made:
        await gather_pieces(made, route(), asking())
    (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["content-type"] == "application/json"
    assert request.headers.get("authorization") == authorization


@pytest.mark.parametrize(("asked", "sent"), [(None, None), (1, 1), (999, 999), (1000, 1000), (1001, 1000)])
@pytest.mark.parametrize(
    ("dialect", "field"), [("plain", "max_tokens"), ("openrouter", "max_tokens"), ("openai", "max_completion_tokens")]
)
async def test_the_output_limit(
    upstream: LoopbackUpstream, asked: int | None, sent: int | None, dialect: str, field: str
) -> None:
    """The limit asked for is sent under the dialect's own name, and never above the route's; none asked, none sent."""
    body = await ask_once(upstream, asking(asked), dialect)
    limits = {name: value for name, value in body.items() if name.startswith("max_")}
    assert limits == ({} if sent is None else {field: sent})


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_is_asked_for_with_its_usage(upstream: LoopbackUpstream, stream: bool) -> None:
    """A streaming ask wants the counts too; another says nothing of streams."""
    body = await ask_once(upstream, asking(stream=stream))
    streaming = {name: value for name, value in body.items() if name.startswith("stream")}
    assert streaming == ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("plain", {}),
        ("openai", {"store": False}),
        ("openrouter", {"provider": {"zdr": True, "data_collection": "deny"}}),
    ],
)
async def test_zero_retention_is_asked_for(upstream: LoopbackUpstream, dialect: str, fields: dict[str, Any]) -> None:
    """Where a provider's API has a switch for zero retention, every ask sets it, whatever its fields say."""
    body = await ask_once(upstream, asking(), dialect)
    assert body == {"model": "large-7", "messages": body["messages"], **fields}
    upstream.reset()
    overriding = Ask([MESSAGE], dict.fromkeys(fields, Raw(b"true")), None, stream=False)
    assert await ask_once(upstream, overriding, dialect) == body


async def test_a_streamed_reply(upstream: LoopbackUpstream) -> None:
    """A stream becomes pieces: its text in order, a finish reason and the counts."""
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        pieces = await gather_pieces(made, route(), asking(stream=True))
    assert "".join(piece.content for piece in pieces) == Good().text
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert [piece.usage for piece in pieces if piece.usage] == [Usage(11, 7, 3)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_whole_reply_is_one_piece(upstream: LoopbackUpstream, stream: bool) -> None:
    """One JSON body is one piece, also where a stream was asked for."""
    upstream.always(Json(completion("Hello")))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        pieces = await gather_pieces(made, route(), asking(stream=stream))
    assert pieces == [Piece("Hello", "stop", Usage(11, 7, 3), has_begun=True)]


async def test_a_stream_that_was_not_asked_for(upstream: LoopbackUpstream) -> None:
    """An upstream that streams all the same is read as a stream, whatever the case of its content type."""
    head = http_head(200, {"Content-Type": "Text/Event-Stream; charset=utf-8", "connection": "close"})
    upstream.always(Said([head, b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n', Close()]))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        assert await gather_pieces(made, route(), asking()) == [Piece("Hi", "stop", has_begun=True)]


async def test_pieces_pass_as_they_come(upstream: LoopbackUpstream) -> None:
    """A piece is handed out before the upstream has said the next one."""
    first, second = Pause(), Pause()
    upstream.always(Sse([ROLE, said("one"), first, said("two"), second, FINISH]))
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(stream=True)) as reply,
    ):
        assert [piece.content for piece in await reply.read() if piece.content] == ["one"]
        first.release()
        assert [piece.content for piece in await reply.read() if piece.content] == ["two"]
        second.release()
        assert [piece.finish_reason for piece in await reply.read() if piece.finish_reason] == ["stop"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_finished_reply_leaves_its_connection_to_the_next(stream: bool) -> None:
    """Replies that were read to their end, streamed or not, all come over one connection."""

    async def story(visit: Visit) -> None:
        while True:
            await visit.say(*(step for step in Good().steps(await visit.request()) if isinstance(step, bytes)))

    async with asyncio.timeout(WAIT_S), Peer(story) as peer, endpoint(peer.url) as made:
        for _ in range(5):
            await gather_pieces(made, route(), asking(stream=stream))
        assert peer.requests_per_visit == [5]


async def test_leaving_closes_the_connection(upstream: LoopbackUpstream) -> None:
    """A reply that is left before its end is closed, so that the upstream stops making it."""
    pause = Pause()
    upstream.always(Sse([said("one"), pause, said("two")]))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        async with made.open(route(), asking(stream=True)) as reply:
            await reply.read()
        await asyncio.to_thread(upstream.wait_for_disconnect)
    pause.release()


@pytest.mark.parametrize(
    "steps",
    [[], [SSE_HEAD], [SSE_HEAD, b"e\r\n: still here\n\n\r\n"], [http_head(200, {"content-length": "9"}), b"{"]],
    ids=["no answer", "a head", "a comment", "half a body"],
)
async def test_cancelling_an_opening_closes_the_connection(upstream: LoopbackUpstream, steps: list[Step]) -> None:
    """A client that leaves before the first word leaves no connection open."""
    pause = Pause()
    upstream.always(Said([*steps, pause]))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        task = asyncio.create_task(gather_pieces(made, route(), asking(stream=True)))
        await asyncio.to_thread(pause.wait_until_reached)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(upstream.wait_for_disconnect)
    pause.release()


STATUSES = {
    FaultKind.REFUSED: [400, 413, 422],
    FaultKind.BUSY: [429],
    FaultKind.FAILED: [
        *(201, 202, 204, 206, 301, 302, 303, 304, 307, 308),
        *(401, 402, 403, 404, 405, 408, 409, 418, 431, 451),
        *(500, 501, 502, 503, 504, 529, 599, 999),
    ],
}


@pytest.mark.parametrize(("kind", "status"), [(kind, status) for kind, many in STATUSES.items() for status in many])
async def test_every_status_but_200_is_a_fault(upstream: LoopbackUpstream, kind: FaultKind, status: int) -> None:
    """A status says whose fault it is; the body is not read for it and does not travel with it."""
    fault = await fault_of(upstream, Status(status, b"" if status in {204, 304} else b'{"secret": 1}'))
    assert (fault.kind, fault.status, fault.retry_after_s) == (kind, status, None)
    assert str(fault) == f"{kind.value} ({status})"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(upstream: LoopbackUpstream, status: int) -> None:
    """A redirect is a fault: prompts and the provider's key go nowhere but to the address that was configured."""
    elsewhere = Status(status, headers={"location": f"{upstream.base_url}/elsewhere"})
    assert (await fault_of(upstream, elsewhere)).kind is FaultKind.FAILED
    assert [request.path for request in upstream.requests] == ["/v1/chat/completions"]


async def test_busy_with_a_time_to_wait(upstream: LoopbackUpstream) -> None:
    """A 429 that says when to come back is a Fault that says so too."""
    fault = await fault_of(upstream, Status(429, headers={"Retry-After": "7"}))
    assert (fault.kind, fault.retry_after_s) == (FaultKind.BUSY, 7.0)


@pytest.mark.parametrize(
    ("written", "wait_s"),
    [
        (None, None),
        (b"", None),
        (b"7", 7.0),
        (b" 7 ", 7.0),
        (b"0.25", 0.25),
        (b"0", 0.0),
        (b"-5", 0.0),
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
async def test_a_time_to_wait_is_read_where_it_can_be(written: bytes | None, wait_s: float | None) -> None:
    """Seconds within reason are taken; anything else is as if it were not there."""
    assert [classify_status(status, written).retry_after_s for status in (429, 503, 529)] == [wait_s] * 3
    assert classify_status(500, written).retry_after_s is None


BROKEN_OFF: dict[str, tuple[Reply, FaultKind]] = {
    "closed without a word": (Said([Close()]), FaultKind.UNREACHABLE),
    "reset without a word": (Said([Reset()]), FaultKind.UNREACHABLE),
    "closed inside the head": (Said([b"HTTP/1.1 200 OK\r\nco", Close()]), FaultKind.TRUNCATED),
    "not HTTP": (Said([b"SSH-2.0-OpenSSH_9.6\r\n", Close()]), FaultKind.TRUNCATED),
    "body cut short": (Cut(Json(completion("Hello")), 40), FaultKind.TRUNCATED),
    "body reset": (Cut(Json(completion("Hello")), 40, Reset()), FaultKind.TRUNCATED),
    "body that is no JSON": (Status(200, b"<html>"), FaultKind.MALFORMED),
    "empty body": (Status(200), FaultKind.MALFORMED),
    "no choices": (Json({"choices": []}), FaultKind.MALFORMED),
    "an error in a 200": (Json({"error": {"code": 429}}), FaultKind.BUSY),
    "a stream that ends at once": (Sse([], done=False), FaultKind.TRUNCATED),
    "a stream of nothing": (Sse([]), FaultKind.TRUNCATED),
    "a stream of a role": (Sse([ROLE]), FaultKind.TRUNCATED),
    "a stream without a finish": (Sse([said("Hi")]), FaultKind.TRUNCATED),
    "a stream without any end": (Sse([said("Hi")], done=False), FaultKind.TRUNCATED),
    "a stream cut short": (Cut(Sse([said("Hi"), FINISH]), 300), FaultKind.TRUNCATED),
    "a stream reset": (Sse([said("Hi"), Reset()]), FaultKind.TRUNCATED),
    "an error at once": (Sse([{"error": {"code": 500}}]), FaultKind.FAILED),
    "an error inside": (Sse([said("Hi"), {"error": {"message": "x"}}]), FaultKind.FAILED),
    "an event that is no JSON": (Sse([said("Hi"), b"data: <html>\n\n"]), FaultKind.MALFORMED),
    "an event without end": (Sse([said("Hi"), b"data: ", *[bytes(MIB)] * 9]), FaultKind.MALFORMED),
    "a body without end": (
        Said([http_head(200, {}), *[b" " * MIB] * (WHOLE_BYTES_MAX // MIB + 1)]),
        FaultKind.MALFORMED,
    ),
}


@pytest.mark.parametrize(("reply", "kind"), BROKEN_OFF.values(), ids=BROKEN_OFF)
async def test_an_answer_that_is_none(upstream: LoopbackUpstream, reply: Reply, kind: FaultKind) -> None:
    """Whatever is not a whole answer ends in a Fault of its kind, and never looks like success."""
    fault = await fault_of(upstream, reply, asking(stream=True))
    assert (fault.kind, str(fault).split(" ")[0]) == (kind, kind.value)


async def test_what_came_before_a_fault_is_handed_out(upstream: LoopbackUpstream) -> None:
    """A reply that breaks off gives all that came first, then its Fault, and the same Fault again."""
    upstream.always(Sse([said("one "), said("two"), Close()]))
    pieces: list[Piece] = []
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(stream=True)) as reply,
    ):
        for _ in range(2):
            with pytest.raises(Fault) as failure:
                await read_into(pieces, reply)
            assert failure.value.kind is FaultKind.TRUNCATED
    assert "".join(piece.content for piece in pieces) == "one two"


AFTER_FINISH: dict[str, list[Event]] = {
    "nothing": [],
    "an error": [{"error": {"code": 500}}],
    "garbage": [b"data: <html>\n\n"],
    "a reset": [Reset()],
    "a close": [Close()],
}


@pytest.mark.parametrize("events", AFTER_FINISH.values(), ids=AFTER_FINISH)
async def test_after_a_finish_nothing_is_a_fault(upstream: LoopbackUpstream, events: list[Event]) -> None:
    """A reply that has its finish reason is whole, whatever follows it."""
    upstream.always(Sse([said("Hi"), FINISH, *events], done=False))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        pieces = await gather_pieces(made, route(), asking(stream=True))
    assert ("".join(piece.content for piece in pieces), pieces[-1].finish_reason) == ("Hi", "stop")


async def test_a_port_where_nobody_listens(upstream: LoopbackUpstream) -> None:
    """An upstream that cannot be connected to is UNREACHABLE."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with asyncio.timeout(WAIT_S), endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}/v1") as made:
            with pytest.raises(Fault) as failure:
                await gather_pieces(made, route(), asking())
    assert failure.value.kind is FaultKind.UNREACHABLE


class Waiting:
    """An ask whose upstream has come to a pause, and how it ends as the clock goes on."""

    def __init__(self, made: OpenAIUpstream, where: Route, ask: Ask) -> None:
        self.pieces: list[Piece] = []
        self._task = asyncio.create_task(self._run(made, where, ask))

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def _run(self, made: OpenAIUpstream, where: Route, ask: Ask) -> FaultKind | None:
        try:
            async with made.open(where, ask) as reply:
                await read_into(self.pieces, reply)
        except Fault as fault:
            return fault.kind
        return None

    async def ends_after(self, clock: Clock, limit_s: float) -> FaultKind | None:
        """It goes on until shortly before the limit, and is over shortly after it."""
        await clock.leap(limit_s - 1)
        assert not self.is_over
        await clock.leap(2)
        return await asyncio.wait_for(self._task, WAIT_S)


@asynccontextmanager
async def waiting(
    upstream: LoopbackUpstream, ask: Ask, *steps: Step, max_output_tokens: int = 1_000_000
) -> AsyncIterator[Waiting]:
    """The upstream has sent these steps, and says nothing more."""
    pause = Pause()
    upstream.always(Said([*steps, pause]))
    async with endpoint(upstream.base_url) as made:
        begun = Waiting(made, route(max_output_tokens), ask)
        await asyncio.to_thread(pause.wait_until_reached)
        yield begun
    pause.release()


def event_steps(*events: Event) -> list[Step]:
    """An event stream that goes on."""
    return list(Sse(events, done=False).steps(Request("POST", "/", {}, b"")))[:-1]


NOT_YET = {
    "no answer": [],
    "half a head": [SSE_HEAD[:-4]],
    "a head": [SSE_HEAD],
    "comments": event_steps(b": still here\n\n"),
    "a role": event_steps(ROLE),
    "counts": event_steps(COUNTS),
}


@on_asyncio
@pytest.mark.parametrize("steps", NOT_YET.values(), ids=NOT_YET)
async def test_the_first_word_of_a_stream_has_its_time(
    upstream: LoopbackUpstream, clock: Clock, steps: list[Step]
) -> None:
    """A stream that has not said a word within first_token_s is SILENT, whatever else it has sent."""
    async with waiting(upstream, asking(4096, stream=True), *steps) as begun:
        assert await begun.ends_after(clock, TIMEOUTS.first_token_s) is FaultKind.TIMED_OUT
        await asyncio.to_thread(upstream.wait_for_disconnect)


@on_asyncio
@pytest.mark.parametrize(
    ("max_tokens", "max_output_tokens", "idle_times"),
    [
        (None, 1_000_000, 1),
        (1, 1_000_000, 1),
        (1024, 1_000_000, 1),
        (1025, 1_000_000, 2),
        (131_072, 1_000_000, 128),
        (131_072, 2048, 2),
    ],
)
@pytest.mark.parametrize("steps", [[], [http_head(200, {"content-length": "9"}), b"{"]], ids=["no answer", "half"])
async def test_a_whole_reply_has_time_to_be_made(
    upstream: LoopbackUpstream,
    clock: Clock,
    max_tokens: int | None,
    max_output_tokens: int,
    idle_times: int,
    steps: list[Step],
) -> None:
    """Without a stream the limit is first_token_s and one idle_s more per 1,024 tokens that may come of the ask."""
    async with waiting(upstream, asking(max_tokens), *steps, max_output_tokens=max_output_tokens) as begun:
        limit_s = TIMEOUTS.first_token_s + idle_times * TIMEOUTS.idle_s
        assert await begun.ends_after(clock, limit_s) is FaultKind.TIMED_OUT


@on_asyncio
async def test_silence_inside_a_stream(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A stream that says nothing for idle_s is SILENT; what it had said was handed out before."""
    async with waiting(upstream, asking(stream=True), *event_steps(ROLE, said("Hi"))) as begun:
        await until(lambda: any(piece.content for piece in begun.pieces))
        assert await begun.ends_after(clock, TIMEOUTS.idle_s) is FaultKind.TIMED_OUT
        assert [piece.content for piece in begun.pieces if piece.content] == ["Hi"]
        await asyncio.to_thread(upstream.wait_for_disconnect)


@on_asyncio
async def test_counts_that_never_come(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A finished stream waits a little for its counts and is whole without them."""
    async with waiting(upstream, asking(stream=True), *event_steps(said("Hi"), FINISH)) as begun:
        await until(lambda: any(piece.finish_reason for piece in begun.pieces))
        assert await begun.ends_after(clock, AFTER_FINISH_S) is None
        assert begun.pieces[-1].finish_reason == "stop"


@on_asyncio
async def test_signs_of_life_do_not_prolong_a_finished_stream(clock: Clock) -> None:
    """A finished stream is over after its little while even if the upstream goes on sending comments."""
    comments: asyncio.Queue[Step] = asyncio.Queue()

    async def story(visit: Visit) -> None:
        await visit.request()
        for step in event_steps(said("Hi"), FINISH):
            assert isinstance(step, bytes)
            await visit.say(step)
        while isinstance(comment := await comments.get(), bytes):
            await visit.say(comment)

    async with asyncio.timeout(100 * WAIT_S), Peer(story) as peer, endpoint(peer.url) as made:
        begun = Waiting(made, route(), asking(stream=True))
        await until(lambda: any(piece.finish_reason for piece in begun.pieces))
        for _ in range(6):
            await clock.leap(AFTER_FINISH_S / 2)
            comments.put_nowait(event_steps(b": still here\n\n")[-1])
            await clock.leap(0)
        assert begun.is_over


@on_asyncio
async def test_the_time_to_connect_is_within_that_of_the_first_word(clock: Clock) -> None:
    """An upstream that does not take the connection is given up after connect_s, or first_token_s if that is less."""
    with full_listener() as port:
        async with endpoint(f"http://127.0.0.1:{port}/v1") as made:
            begun = Waiting(made, route(), asking(stream=True))
            await clock.leap(0)
            assert await begun.ends_after(clock, TIMEOUTS.connect_s) is FaultKind.UNREACHABLE
            begun = Waiting(made, route(timeouts=Timeouts(connect_s=300, first_token_s=200)), asking(stream=True))
            await clock.leap(0)
            assert await begun.ends_after(clock, 200) is FaultKind.TIMED_OUT


NAMED = b'{"object": "list", "data": [{"id": "large-7", "x": 1}, {"id": "small-7"}]}'
PROBES: dict[str, tuple[Reply, Probe]] = {
    "models": (Status(200, NAMED), Probe(reachable=True, detail="answers", models=("large-7", "small-7"))),
    "no models": (Status(200, b'{"data": []}'), Probe(reachable=True, detail="answers")),
    "401": (Status(401, NAMED), Probe(reachable=False, detail="answers 401 to GET /models")),
    "404": (Status(404, b"<html>"), Probe(reachable=False, detail="answers 404 to GET /models")),
    "redirect": (
        Status(302, headers={"location": "/v1/other"}),
        Probe(reachable=False, detail="answers 302 to GET /models"),
    ),
}
NAMELESS = {
    "HTML": b"<html>",
    "empty": b"",
    "a list": b"[]",
    "no data": b"{}",
    "data of another kind": b'{"data": {"id": "x"}}',
    "no id": b'{"data": [{"name": "x"}]}',
    "an id that is no string": b'{"data": [{"id": 7}]}',
    "invalid UTF-8": b'{"data": [{"id": "\xff"}]}',
    "nested without end": b'{"data": [], "x": ' + b"[" * 100_000,
}
UNANSWERED: dict[str, Reply] = {
    "closed": Said([Close()]),
    "reset": Said([Reset()]),
    "no HTTP": Said([b"SSH-2.0-OpenSSH_9.6\r\n"]),
    "cut short": Cut(Status(200, NAMED), 20),
    "without end": Said([http_head(200, {}), *[b" " * MIB] * (WHOLE_BYTES_MAX // MIB + 1)]),
}


@pytest.mark.parametrize(("reply", "probe"), PROBES.values(), ids=PROBES)
async def test_a_probe_says_what_it_found(upstream: LoopbackUpstream, reply: Reply, probe: Probe) -> None:
    """A look at a provider tells whether it answers as it should, and the models that it names."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url, "sk-1") as made:
        assert await made.probe() == probe
    (request,) = upstream.requests
    assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")
    assert request.headers["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize("body", NAMELESS.values(), ids=NAMELESS)
async def test_a_provider_that_names_no_models(upstream: LoopbackUpstream, body: bytes) -> None:
    """A provider that answers, but not with a list of models, may well be of use."""
    upstream.always(Status(200, body))
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        assert await made.probe() == Probe(reachable=True, detail="answers, but names no models")


@pytest.mark.parametrize("reply", UNANSWERED.values(), ids=UNANSWERED)
async def test_a_provider_that_does_not_answer(upstream: LoopbackUpstream, reply: Reply) -> None:
    """A look at a provider that breaks off is no exception but a finding."""
    upstream.always(reply)
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        assert await made.probe() == Probe(reachable=False, detail="no answer")


async def test_a_provider_that_is_not_there() -> None:
    """A look at an address where nobody is finds no answer."""
    async with asyncio.timeout(WAIT_S), endpoint("http://no-such-host.invalid/v1") as made:
        assert await made.probe() == Probe(reachable=False, detail="no answer")


@on_asyncio
async def test_a_look_at_a_silent_provider_is_bounded(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A provider that takes the request and says nothing is given up after PROBE_S."""
    pause = Pause()
    upstream.always(Said([pause]))
    async with endpoint(upstream.base_url) as made:
        task = asyncio.create_task(made.probe())
        await asyncio.to_thread(pause.wait_until_reached)
        await clock.leap(PROBE_S - 1)
        assert not task.done()
        await clock.leap(2)
        assert (await asyncio.wait_for(task, WAIT_S)).detail == "no answer"
    pause.release()
