"""Delivery of a reply to its sink: pieces as they arrive, in order, with backpressure; and how connections end."""

import asyncio
import weakref
from collections.abc import Callable

import pytest

from cadenza.core.faults import FaultKind
from cadenza.core.records import Usage
from cadenza.http.client_connection import FRAMING
from cadenza.http.events import DONE
from cadenza.upstreams.base import Piece
from cadenza.upstreams.openai import READ_TO_END_S, StreamedReply
from tests.loopback import (
    Close,
    Event,
    Good,
    Json,
    LoopbackUpstream,
    Pause,
    Reset,
    Sse,
    Step,
    completion,
    http_head,
    said,
    sse_event,
)
from tests.loopback import Raw as RawReply
from tests.unit.http.peer import Peer, Visit, client_leaves, happens
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.asks import (
    COUNTS,
    FINISH,
    ROLE,
    SSE_HEAD,
    STREAMING,
    EndlessStream,
    RecordingSink,
    deliver,
    event_bytes,
    event_steps,
    make_ask,
    opened,
    read_pieces,
    read_reply,
    route,
    running,
)
from tests.unit.upstreams.clock import Clock

WORDS = [f"word{number} " for number in range(40)]
TEXT = "".join(WORDS)
LAST_CHUNK = b"0\r\n\r\n"


async def test_a_streamed_reply(upstream: LoopbackUpstream) -> None:
    """A stream is delivered as its text in order, one finish reason and the usage."""
    sink, fault = await read_reply(upstream, Good())
    assert (fault, sink.text) == (None, Good().text)
    assert [piece.finish_reason for piece in sink.pieces if piece.finish_reason] == ["stop"]
    assert [piece.usage for piece in sink.pieces if piece.usage] == [Usage(11, 7, 3)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_json_body_is_one_piece(upstream: LoopbackUpstream, stream: bool) -> None:
    """One JSON body is delivered as one piece, also if a stream was requested."""
    sink, fault = await read_reply(upstream, Json(completion("Hello")), make_ask(stream=stream))
    assert fault is None
    assert sink.pieces == [Piece("Hello", "stop", Usage(11, 7, 3), has_begun=True)]


async def test_an_open_stream_does_not_keep_the_headers_of_its_response(upstream: LoopbackUpstream) -> None:
    """Some upstreams send kilobytes of them, and a stream may stay open for long."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("Hi"), pause]))
    async with running(upstream.base_url) as openai, opened(openai) as reply:
        assert isinstance(reply, StreamedReply)
        assert reply.response.headers.keys() <= FRAMING
    pause.release()


async def test_a_piece_is_delivered_before_the_next_one_is_sent(upstream: LoopbackUpstream) -> None:
    """The sink has each piece while the upstream still waits to send the next one."""
    pauses, sink = [Pause(), Pause()], RecordingSink()
    upstream.always(Sse([ROLE, said("one "), pauses[0], said("two "), pauses[1], FINISH]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        delivery = asyncio.create_task(deliver(openai, sink))
        for pause, text in zip(pauses, ("one ", "one two "), strict=True):
            await until(lambda text=text: sink.text == text)  # type: ignore[misc]
            pause.release()
        assert await delivery is None


class TaskSink(RecordingSink):
    """Also keeps the task in which it takes each piece; None in a callback of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[object] | None] = []

    def take(self, piece: Piece) -> None:
        super().take(piece)
        self.tasks.append(asyncio.current_task())


async def test_an_arriving_piece_is_delivered_without_a_task_switch(upstream: LoopbackUpstream) -> None:
    """The first pieces come from the delivering task; later ones in the callback in which their bytes arrive."""
    pause, sink = Pause(), TaskSink()
    upstream.always(Sse([said("First "), pause, *map(said, WORDS), FINISH]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        delivery = asyncio.create_task(deliver(openai, sink))
        await until(lambda: bool(sink.pieces))
        pause.release()
        assert await delivery is None
    assert sink.text == "First " + TEXT
    assert sink.tasks == [delivery] + [None] * (len(sink.tasks) - 1)


CONGESTION: dict[str, Callable[[int], bool]] = {
    "never": lambda _: False,
    "always": lambda _: True,
    "every other piece": lambda count: bool(count % 2),
    "every fifth piece": lambda count: not count % 5,
    "at the start": lambda count: count < 9,
    "at the end": lambda count: count > 9,
}


@pytest.mark.parametrize("piece_bytes", [None, 40, 150], ids=lambda size: f"parts of {size}")
@pytest.mark.parametrize("congests", CONGESTION.values(), ids=CONGESTION)
async def test_congestion_loses_and_reorders_nothing(
    upstream: LoopbackUpstream, congests: Callable[[int], bool], piece_bytes: int | None
) -> None:
    """Whenever the sink is congested, and however the bytes are split, it gets every piece once and in order."""
    events = [*map(said, WORDS), said('"quoted" \\ \n'), said(""), *map(said, WORDS), FINISH, COUNTS]
    upstream.always(Sse(events, piece_bytes=piece_bytes))
    sink = RecordingSink(congests)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        assert await deliver(openai, sink) is None
    assert [piece.content for piece in sink.pieces if piece.content] == [*WORDS, '"quoted" \\ \n', *WORDS]
    assert sink.pieces[-1].usage == Usage(11, 7, 3)


async def test_a_congested_sink_stops_the_upstream(upstream: LoopbackUpstream) -> None:
    """While the sink is congested it gets no piece and the upstream cannot send more; then the rest arrives."""
    words = [f"{number}-" + "x" * 65_536 for number in range(400)]
    upstream.always(Sse([*map(said, words), FINISH]))
    sink = RecordingSink(lambda count: count == 3, resumes_by_itself=False)
    async with asyncio.timeout(2 * WAIT_S), running(upstream.base_url) as openai:
        delivery = asyncio.create_task(deliver(openai, sink, where=route(131_072)))
        await until(lambda: sink.drains > 0)
        pieces_then = len(sink.pieces)
        sent_bytes = await asyncio.to_thread(upstream.wait_for_stall, WAIT_S)
        assert sent_bytes < sum(map(len, words)) / 2
        assert len(sink.pieces) == pieces_then < 20
        sink.resume()
        assert await delivery is None
    assert [piece.content for piece in sink.pieces if piece.content] == words


@pytest.mark.parametrize(
    ("end", "kind"),
    [([FINISH], None), ([Close()], FaultKind.TRUNCATED), ([Reset()], FaultKind.TRUNCATED)],
    ids=["end", "close", "reset"],
)
async def test_a_reply_that_ends_while_its_sink_is_congested(end: list[Event], kind: FaultKind | None) -> None:
    """Pieces that arrived during congestion are delivered after it, and then the reply's end or fault."""
    pause = Pause()
    sink = RecordingSink(lambda count: count == 1, resumes_by_itself=False)
    with LoopbackUpstream() as upstream:  # its own: the only connection is the one that ends
        upstream.always(Sse([said("one "), pause, said("two "), said("three"), *end]))
        async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
            delivery = asyncio.create_task(deliver(openai, sink))
            await until(lambda: sink.drains > 0)
            pause.release()
            if kind:
                await until(lambda: upstream.open_connections == 0)
            assert sink.text == "one "
            sink.resume()
            fault = await delivery
    assert (fault and fault.kind) is kind
    assert sink.text in ({"one two three"} if end != [Reset()] else {"one ", "one two three"})


class RaisingSink(RecordingSink):
    """Raises at the piece with this text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def take(self, piece: Piece) -> None:
        super().take(piece)
        if piece.content == self._text:
            raise ZeroDivisionError


@pytest.mark.parametrize("text", ["first", "arriving", "last"])
async def test_an_exception_of_the_sink_reaches_the_caller(upstream: LoopbackUpstream, text: str) -> None:
    """An exception that the sink raises, at any piece, comes out of `deliver`; closing then closes the connection."""
    pause, last = Pause(), Pause()
    steps = event_steps(said("first"), pause, said("arriving"), sse_event(said("last"))[:-1], last)
    upstream.always(RawReply([*steps, LAST_CHUNK, *([Pause()] if text != "last" else [])]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        sink = RaisingSink(text)
        delivery = asyncio.create_task(deliver(openai, sink))
        await until(lambda: bool(sink.pieces))
        pause.release()
        if text == "last":
            last.release()
        with pytest.raises(ZeroDivisionError):
            await delivery
        if text != "last":
            await asyncio.to_thread(upstream.wait_for_disconnect)
    assert sink.pieces[-1].content == text


async def test_closing_an_open_reply_closes_the_connection(upstream: LoopbackUpstream) -> None:
    """A reply that is closed before it was delivered is closed at the upstream, which stops generating."""
    pause = Pause()
    upstream.always(Sse([said("one"), pause, said("two")]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        async with opened(openai):
            pass
        await asyncio.to_thread(upstream.wait_for_disconnect)
    pause.release()


@pytest.mark.parametrize(
    "steps",
    [[], [SSE_HEAD], [SSE_HEAD, b"e\r\n: still here\n\n\r\n"], [http_head(200, {"content-length": "9"}), b"{"]],
    ids=["no response", "a head", "a comment", "half a body"],
)
async def test_cancelling_an_opening_closes_the_connection(upstream: LoopbackUpstream, steps: list[Step]) -> None:
    """Cancelling before the first piece closes the connection at once."""
    pause = Pause()
    upstream.always(RawReply([*steps, pause]))
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        await cancel_when_reached(asyncio.create_task(deliver(openai, RecordingSink())), pause)
        await asyncio.to_thread(upstream.wait_for_disconnect)
    pause.release()


async def cancel_when_reached(task: asyncio.Task[object], pause: Pause) -> None:
    await asyncio.to_thread(pause.wait_until_reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_congested", [False, True], ids=["reading", "congested"])
async def test_cancelling_a_delivery_closes_the_connection(upstream: LoopbackUpstream, is_congested: bool) -> None:
    """Cancelling a delivery closes the connection at once, also during congestion; the sink gets nothing more."""
    upstream.always(EndlessStream([said("x")]))
    sink = RecordingSink(lambda count: is_congested and count > 10, resumes_by_itself=False)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        delivery = asyncio.create_task(deliver(openai, sink, where=route(131_072)))
        await until(lambda: len(sink.pieces) > 10)
        delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery
        pieces_then = len(sink.pieces)
        await asyncio.to_thread(upstream.wait_for_disconnect)
    assert len(sink.pieces) == pieces_then


@pytest.mark.parametrize("stream", [True, False])
async def test_a_complete_reply_leaves_its_connection_to_the_next(clock: Clock, stream: bool) -> None:
    """Complete replies use one connection, also if the end of the body arrives after [DONE]."""

    async def script(visit: Visit) -> None:
        while True:
            await visit.say(*(step for step in Good().steps(await visit.request()) if isinstance(step, bytes)))

    async with asyncio.timeout(WAIT_S), Peer(script) as peer, running(peer.url) as openai:
        for _ in range(5):
            await read_pieces(openai, make_ask(stream=stream))
        assert peer.requests_per_visit == [5]


BROKEN_REPLIES: dict[str, list[Event]] = {
    "an error": [said("Hi"), {"error": {"code": 500}}],
    "not JSON": [said("Hi"), b"data: <html>\n\n"],
    "[DONE] without a finish reason": [said("Hi"), DONE],
    "an error at once": [{"error": {"code": 500}}],
}


@pytest.mark.parametrize("events", BROKEN_REPLIES.values(), ids=BROKEN_REPLIES)
async def test_a_broken_reply_closes_its_connection(clock: Clock, events: list[Event]) -> None:
    """After a fault the connection is closed without any wait, and the next ask uses a new one."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*event_bytes(*events))
        await visit.until_left()

    async with Peer(script) as peer, running(peer.url) as openai:
        for number in range(2):
            assert await deliver(openai, RecordingSink()) is not None
            await happens(peer.visits[number].left)
        assert peer.requests_per_visit == [1, 1]


async def test_a_status_other_than_200_closes_its_connection() -> None:
    """The body of an error whose status says all is not read: its connection is closed at once."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(http_head(401, {"content-length": "1000"}))
        await visit.until_left()

    async with asyncio.timeout(WAIT_S), Peer(script) as peer, running(peer.url) as openai:
        assert await deliver(openai, RecordingSink()) is not None
        await client_leaves(peer)


async def test_a_body_that_does_not_end_after_done(clock: Clock) -> None:
    """Closing waits READ_TO_END_S for the end of the body after [DONE], then closes the connection."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*event_bytes(said("Hi"), FINISH, DONE))
        await visit.until_left()

    async with Peer(script) as peer, running(peer.url) as openai:
        sink = RecordingSink()
        reply = await openai.open(route(), STREAMING)
        await reply.deliver(sink)
        closing = asyncio.create_task(reply.close())
        await clock.leap(0)
        await clock.leap(READ_TO_END_S)
        await closing
        await client_leaves(peer)
    assert (sink.text, sink.pieces[-1].finish_reason) == ("Hi", "stop")


async def test_a_delivered_reply_does_not_keep_its_sink(upstream: LoopbackUpstream) -> None:
    """After the delivery nothing refers to the sink, so it is freed without the garbage collector."""
    upstream.always(Good())
    sink = RecordingSink()
    is_kept = weakref.ref(sink)
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai, opened(openai) as reply:
        await reply.deliver(sink)
        assert is_kept()
        del sink
        assert not is_kept()
