"""The server: a thread with an event loop of its own that writes HTTP/1.1 by hand.

Every byte, pause and reset is the test's decision. Each request is recorded; every wait of a test is bounded and
fails with an AssertionError.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Self

from tests.loopback.replies import WAIT_S, Close, Good, Pause, Reply, Request, Reset, Step

STALL_S = 1.0
BACKLOG = 2048
END_TURNS = 8  # of the loop, in which a reply ends whose last bytes are written
SEND_BUFFER_BYTES = 128 * 1024  # small, so that a stall is seen early


class Record:
    """What the upstream saw during one test. A reply keeps to the record that was current when its request arrived."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.disconnects = 0
        self.written_bytes = 0
        self.stalled_bytes: int | None = None
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Wakes every test that waits for a change made in this block."""
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, timeout_s), f"not within {timeout_s} s: {what}"


class _Connection(asyncio.StreamReaderProtocol):
    """A stream connection that notices at once when its peer disconnects."""

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
        """Forget what was seen and scripted; replies in progress keep to their own record."""
        self._record = Record()
        self._script: deque[Reply] = deque()
        self._default: Reply = Good()

    def script(self, *replies: Reply) -> None:
        """Queue replies, each used once; after them the default answers again."""
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
        """Wait until the peer closes its connection while a reply is in progress."""
        record = self._record
        record.wait(lambda: record.disconnects > 0, timeout_s, "the peer closing its connection")

    def wait_for_stall(self, timeout_s: float = WAIT_S) -> int:
        """The number of bytes that the peer had read when it stopped reading for STALL_S seconds."""
        record = self._record
        record.wait(lambda: record.stalled_bytes is not None, timeout_s, "the peer no longer reading")
        assert record.stalled_bytes is not None
        return record.stalled_bytes

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        creating = self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=BACKLOG)
        server = self._loop.run_until_complete(creating)
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
        for _ in range(END_TURNS):  # a peer that has read everything may leave before this task sees the end of it
            if not writing.done():
                await asyncio.sleep(0)
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
    with _closing(iter(steps)) as taken:
        for step in taken:
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


@contextlib.contextmanager
def _closing(steps: Iterator[Step]) -> Iterator[Iterator[Step]]:
    """A reply that is a generator runs its `finally` when it is interrupted."""
    try:
        yield steps
    finally:
        if isinstance(steps, Generator):
            steps.close()


async def _drain(writer: asyncio.StreamWriter, record: Record) -> None:
    await asyncio.sleep(0)
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                return await writer.drain()
        except TimeoutError:
            with record.change():
                record.stalled_bytes = record.written_bytes - writer.transport.get_write_buffer_size()
