"""A real upstream on a loopback port, scripted to answer well, badly or not at all.

It runs in a thread with an event loop of its own and writes HTTP/1.1 by hand, so that every byte, pause and reset is
the test's decision. Each request is recorded; every wait of a test is bounded and fails with an AssertionError.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, Self

import msgspec

WAIT_S = 10.0
STALL_S = 1.0
SEND_BUFFER_BYTES = 128 * 1024  # small, so that a stall is seen early
UPSTREAM_ID = "upstream-id-71"
UPSTREAM_MODEL = "upstream-model-72"
UPSTREAM_FINGERPRINT = "upstream-print-73"
UPSTREAM_MARKS = (UPSTREAM_ID, UPSTREAM_MODEL, UPSTREAM_FINGERPRINT)
CACHED = {"cached_tokens": 3}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": CACHED}


class Request(msgspec.Struct, frozen=True):
    """One request as it came over the wire. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Pause:
    """A point where one reply waits until the test lets it go on."""

    def __init__(self) -> None:
        self._released: Future[None] = Future()
        self._reached = threading.Event()

    def release(self) -> None:
        with contextlib.suppress(InvalidStateError):
            self._released.set_result(None)

    def wait_until_reached(self, timeout_s: float = WAIT_S) -> None:
        assert self._reached.wait(timeout_s), "the upstream never came to the pause"

    async def hold(self) -> None:
        self._reached.set()
        await asyncio.wrap_future(self._released)


class Reset(msgspec.Struct, frozen=True):
    """The connection dies with a TCP reset."""


class Close(msgspec.Struct, frozen=True):
    """The connection is closed in good order, whatever was promised."""


Step = bytes | Pause | Reset | Close
Event = dict[str, Any] | Step


class Reply(Protocol):
    """What the upstream does with a request. The first step is the head, the rest is the body."""

    def steps(self, request: Request, /) -> Iterable[Step]: ...


class Status(msgspec.Struct, frozen=True):
    """Any status with any body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}

    def steps(self, _request: Request) -> Iterator[Step]:
        headers = {"content-type": "application/json", "content-length": str(len(self.body)), **self.headers}
        yield http_head(self.status, headers)
        yield self.body


class Json(msgspec.Struct, frozen=True):
    """A 200 with one JSON document."""

    value: Any

    def steps(self, request: Request) -> Iterator[Step]:
        return Status(200, json.dumps(self.value).encode()).steps(request)


class Sse(msgspec.Struct, frozen=True):
    """An event stream: dicts become events, bytes go out as they stand.

    `piece_bytes` makes every HTTP chunk that small, so that the reader meets each piece alone.
    """

    events: Sequence[Event]
    done: bool = True
    line_end: bytes = b"\n"
    piece_bytes: int | None = None

    def steps(self, _request: Request) -> Iterator[Step]:
        yield http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for event in self.events:
            if isinstance(event, Pause | Reset | Close):
                yield event
            else:
                yield from self._framed(sse_event(event, self.line_end) if isinstance(event, dict) else event)
        if self.done:
            yield from self._framed(b"data: [DONE]" + self.line_end * 2)
        yield b"0\r\n\r\n"

    def _framed(self, data: bytes) -> Iterator[bytes]:
        size = self.piece_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield b"%x\r\n%b\r\n" % (len(piece), piece)


class Good(msgspec.Struct, frozen=True):
    """What a sound OpenAI-compatible upstream says, streamed or not as the request asks."""

    text: str = "Hello there, this is the upstream."
    finish_reason: str = "stop"

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json
        if not asked.get("stream"):
            return Json(completion(self.text, self.finish_reason)).steps(request)
        words = self.text.split(" ")
        pieces = [word + " " for word in words[:-1]] + words[-1:]
        events = [chunk({"role": "assistant", "content": ""}), *map(said, pieces), chunk(finish=self.finish_reason)]
        if (asked.get("stream_options") or {}).get("include_usage"):
            events.append(chunk(choices=[], usage=USAGE))
        return Sse(events).steps(request)


class Raw(msgspec.Struct, frozen=True):
    """Steps just as they are given."""

    given: Sequence[Step]

    def steps(self, _request: Request) -> Iterable[Step]:
        return self.given


class Cut(msgspec.Struct, frozen=True):
    """Another reply whose body ends after so many bytes."""

    reply: Reply
    body_bytes: int
    end: Reset | Close = Close()

    def steps(self, request: Request) -> Iterator[Step]:
        head, *body = self.reply.steps(request)
        yield head
        yield b"".join(step for step in body if isinstance(step, bytes))[: self.body_bytes]
        yield self.end


class Dribble(msgspec.Struct, frozen=True):
    """Another reply, head and body, written one byte at a time."""

    reply: Reply

    def steps(self, request: Request) -> Iterator[Step]:
        for step in self.reply.steps(request):
            if isinstance(step, bytes):
                yield from (step[place : place + 1] for place in range(len(step)))
            else:
                yield step


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One upstream chunk, with the names and extras that must never reach a client."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, "logprobs": None, "vendor_note": UPSTREAM_ID}
    return {**_envelope("chat.completion.chunk"), "choices": [choice], **fields}


def said(text: str) -> dict[str, Any]:
    return chunk({"content": text})


def completion(content: Any, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "vendor_note": UPSTREAM_ID}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": USAGE, **fields}


def _envelope(kind: str) -> dict[str, Any]:
    marks = {"id": UPSTREAM_ID, "model": UPSTREAM_MODEL, "system_fingerprint": UPSTREAM_FINGERPRINT}
    return {**marks, "object": kind, "created": 1}


def sse_event(value: dict[str, Any], line_end: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + line_end * 2


def http_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class Record:
    """What one test's upstream saw. A reply belongs to the record under which its request came in."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.disconnects = 0
        self.written_bytes = 0
        self.stalled_bytes: int | None = None
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """What changes in this block is seen at once by a test that waits for it."""
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, timeout_s), f"not within {timeout_s} s: {what}"


class _Connection(asyncio.StreamReaderProtocol):
    """A stream connection that also says at once when its peer has gone."""

    def __init__(self, upstream: "LoopbackUpstream") -> None:
        super().__init__(asyncio.StreamReader(), upstream.serve)
        self.gone = asyncio.Event()
        self.abort: Callable[[], None] = self.gone.set
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.abort = transport.abort
        self._upstream.connections.add(self)
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._upstream.connections.discard(self)
        super().connection_lost(exc)


class LoopbackUpstream:
    """The server itself: `with LoopbackUpstream() as upstream` listens until the block ends."""

    def __init__(self) -> None:
        self.connections: set[_Connection] = set()
        self.base_url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="loopback-upstream", daemon=True)
        self._listening: Future[int] = Future()
        self.reset()

    def __enter__(self) -> Self:
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{self._listening.result(WAIT_S)}/v1"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the loopback upstream did not end"

    def reset(self) -> None:
        """Forget what was seen and scripted; replies still under way keep to their own record."""
        self._record = Record()
        self._script: deque[Reply] = deque()
        self._default: Reply = Good()

    def script(self, *replies: Reply) -> None:
        """Queue replies, each used once; then the default answers again."""
        self._script.extend(replies)

    def always(self, reply: Reply) -> None:
        self._default = reply

    @property
    def requests(self) -> list[Request]:
        return list(self._record.requests)

    @property
    def open_connections(self) -> int:
        return len(self.connections)

    def wait_for_request(self, count: int = 1, timeout_s: float = WAIT_S) -> Request:
        record = self._record
        record.wait(lambda: len(record.requests) >= count, timeout_s, f"request {count}")
        return record.requests[count - 1]

    def wait_for_disconnect(self, timeout_s: float = WAIT_S) -> None:
        """The peer closed its connection while a reply was still under way."""
        record = self._record
        record.wait(lambda: record.disconnects > 0, timeout_s, "the peer closing its connection")

    def wait_for_stall(self, timeout_s: float = WAIT_S) -> int:
        """The bytes that had been taken when the peer stopped reading for STALL_S seconds."""
        record = self._record
        record.wait(lambda: record.stalled_bytes is not None, timeout_s, "the peer no longer reading")
        assert record.stalled_bytes is not None
        return record.stalled_bytes

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0))
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._listening.set_result(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()
        for connection in list(self.connections):
            connection.abort()
        self._loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True))
        self._loop.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while await self._answer(await read_request(reader), writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        record = self._record
        reply = self._script.popleft() if self._script else self._default
        with record.change():
            record.requests.append(request)
        connection = writer.transport.get_protocol()
        assert isinstance(connection, _Connection)
        writing = asyncio.ensure_future(_write(reply.steps(request), writer, record))
        leaving = asyncio.ensure_future(connection.gone.wait())
        await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if writing.done() and not isinstance(writing.exception(), ConnectionError):
            return writing.result()
        writing.cancel()
        with record.change():
            record.disconnects += 1
        return False


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.rstrip().split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Request(method, path, headers, await _read_chunked(reader))
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def _write(steps: Iterable[Step], writer: asyncio.StreamWriter, record: Record) -> bool:
    """Whether the connection may serve another request."""
    for step in steps:
        if isinstance(step, Pause):
            await step.hold()
        elif isinstance(step, Close):
            return False
        elif isinstance(step, Reset):
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        else:
            writer.write(step)
            record.written_bytes += len(step)
            await _drain(writer, record)
    return True


async def _drain(writer: asyncio.StreamWriter, record: Record) -> None:
    await asyncio.sleep(0)
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                return await writer.drain()
        except TimeoutError:
            with record.change():
                record.stalled_bytes = record.written_bytes - writer.transport.get_write_buffer_size()
