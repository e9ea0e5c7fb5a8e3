"""The client's end of a connection to an upstream: one exchange at a time, and its response while it lasts.

Each part of the body is handed to a receiver as
soon as it arrives. Without a receiver, a bounded buffer fills up, and then nothing more is read from the socket: this
is how backpressure reaches the upstream.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, auto
from itertools import chain
from typing import cast

import httptools

from cadenza.http.flow import Deadline

HEAD_BYTES_MAX = 64 * 1024
BUFFER_BYTES_MAX = 256 * 1024
IDLE_S_MAX = 30.0  # a connection idle for longer may have been closed at the other end
FRAMING = {b"content-length", b"transfer-encoding"}

PART_BYTES = 128  # the minimum average size of a part of a body, on a guarded connection
SMALL_PARTS = 1000  # parts that may be smaller before the average counts

SLICE_BYTES = 256 * 1024
Pieces = Sequence[bytes | memoryview]

Receiver = Callable[[bytes], bool]  # takes a part of the body; False if it wants no more for now


class Broken(Exception):
    """The connection ended, or what came was not HTTP."""


class Unanswered(Broken):
    """The connection ended before the first byte of a response."""


class ClientState(IntEnum):
    """What is known of the response."""

    IDLE = auto()  # no exchange runs
    AWAITING_BYTE = auto()  # the request was sent, and no byte came back
    READING_HEAD = auto()  # the head of the response is arriving
    READING_BODY = auto()  # the body is arriving
    COMPLETE = auto()  # the whole response arrived
    BROKEN = auto()  # closed, or what came is not HTTP: it cannot be used again


# As names: Python 3.11 is slow to look up ClientState.X.
IDLE, AWAITING_BYTE, READING_HEAD, READING_BODY, COMPLETE, BROKEN = ClientState

# The transitions: for each event, the states in which it may happen, and the next state of each. In any other state
# the event is a programming error, and a KeyError.
REQUEST_SENT = {IDLE: AWAITING_BYTE}
FIRST_BYTE = {AWAITING_BYTE: READING_HEAD}
HEAD_COMPLETE = {READING_HEAD: READING_BODY}
BODY_COMPLETE = {READING_BODY: COMPLETE}  # also at the end of the connection, where the body has no framing
EXCHANGE_ENDED = {COMPLETE: IDLE}
ABORT = dict.fromkeys(ClientState, BROKEN)
CONNECTION_LOST = {**ABORT, COMPLETE: COMPLETE}  # a response that is complete can still be read


class ClientConnection(asyncio.Protocol):
    """A connection; while an exchange lasts, also its response: status, headers and body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._state = IDLE
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop, self._expire)
        self._waiter: asyncio.Future[None] | None = None
        self._receiver: Receiver | None = None
        self._idle_s = self._end_s = math.inf  # how long it waits for a part, and for all of them
        self._buffer: list[bytes] = []  # parts of the body
        self._buffered_bytes = 0  # of those that wait for a receiver
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []  # names in lower case, and values
        self._overhead_bytes = 0  # everything since the last byte of a body: heads, trailers, chunk sizes
        self._keeps_alive = False
        self._idle_since_s = 0.0

    def send(self, request: bytes, deadline_s: float = math.inf) -> asyncio.Future[None]:
        """Send a request. To be awaited: done when the head of the response has arrived; TimeoutError at the deadline.

        If it fails, or is cancelled, the caller must abort the connection.
        """
        if self._state is BROKEN:  # the other end closed it before it was used
            raise Unanswered
        self.status, self._overhead_bytes = 0, 0
        self._fields.clear()  # trailers of the last response
        self._state = REQUEST_SENT[self._state]
        self._transport.write(request)
        return self._news(deadline_s)

    async def send_large(self, request: bytes, pieces: Pieces, deadline_s: float) -> None:
        """Send a request that goes on with `pieces`: in slices, so that the event loop is not held by a large body."""
        head_arrived = self.send(request, deadline_s)
        try:
            for part in _slices(pieces):
                if self._state is BROKEN:
                    break
                self._transport.write(part)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if head_arrived.done():
                head_arrived.exception()  # asyncio reports an error that nobody has looked at
            raise
        await head_arrived

    async def receive(self, receiver: Receiver, deadline_s: float = math.inf, idle_s: float = math.inf) -> bool:
        """Hand the body to the receiver, part by part, until it wants no more (True) or the body ends (False).

        TimeoutError at the deadline, or if no part arrives for `idle_s`; Broken if the body breaks off.
        """
        while self._buffer:
            if not receiver(self.take_arrived()):
                return True
        self._receiver, self._idle_s, self._end_s = receiver, idle_s, deadline_s
        try:
            while self._receiver is not None and self._state is not COMPLETE:
                await self._news(min(deadline_s, self._loop.time() + idle_s))
            return self._receiver is None
        finally:
            self._receiver = None

    def take_whole(self) -> bytes | None:
        """The body, if all of it has arrived."""
        return self.take_arrived() if self._state is COMPLETE else None

    def take_arrived(self) -> bytes:
        """The part of the body that has arrived and was not handed over."""
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        if self._buffered_bytes > BUFFER_BYTES_MAX and not self._transport.is_closing():
            self._transport.resume_reading()
        self._buffered_bytes = 0
        return data

    def forget_headers(self) -> None:
        """Keep only those that say where the body ends: a server may send kilobytes of others."""
        self.headers = {name: value for name, value in self.headers.items() if name in FRAMING}

    def is_usable(self) -> bool:
        is_fresh = self._loop.time() - self._idle_since_s < IDLE_S_MAX
        return is_fresh and self._state is IDLE and not self._transport.is_closing()

    def end_exchange(self) -> bool:
        """True if another exchange may follow; otherwise the connection is closed."""
        is_read = self._state is COMPLETE and not self._buffer and not self._transport.get_write_buffer_size()
        if is_read and self._keeps_alive and not self._transport.is_closing():
            self._state = EXCHANGE_ENDED[self._state]
            self._idle_since_s = self._loop.time()
            return True
        self.abort()
        return False

    def abort(self) -> None:
        """Close the connection. Nobody may wait for its response any more."""
        self._waiter = None
        self._state = ABORT[self._state]
        self._close()

    def _close(self) -> None:
        if not self._transport.is_closing():  # a secure transport cannot be aborted twice
            self._transport.abort()

    def _news(self, deadline_s: float) -> asyncio.Future[None]:
        """To be awaited: done when the head or the end of the body arrives or the receiver stops; or TimeoutError."""
        if self._state is BROKEN:
            raise Broken
        deadline = self._deadline
        if deadline_s >= deadline.at_s:
            deadline.at_s = deadline_s
        else:
            deadline.set(deadline_s)
        self._waiter = self._loop.create_future()
        return self._waiter

    def _expire(self) -> None:
        """No timer runs now, so a receiver that moved the deadline after this would leave it without one."""
        self._stop_receiving(TimeoutError())

    def _wake(self, error: BaseException | None = None) -> None:
        """The waiter is forgotten: with its error it would keep the frames of the task that awaited it."""
        waiter, self._waiter = self._waiter, None
        if waiter and not waiter.done():
            if error:
                waiter.set_exception(error)
            else:
                waiter.set_result(None)

    def _begin_head(self) -> bool:
        """Bytes came that belong to no body. False if no request asked for them."""
        if self._state is AWAITING_BYTE:
            self._state = FIRST_BYTE[self._state]
        return self._state is READING_HEAD

    def _stop_receiving(self, error: Exception | None = None) -> None:
        self._receiver = None
        self._wake(error)

    def _note_buffered(self, size_bytes: int) -> None:
        """Parts of the body wait for a receiver. If they are many, stop reading."""
        was_full = self._buffered_bytes > BUFFER_BYTES_MAX
        self._buffered_bytes += size_bytes
        if self._buffered_bytes > BUFFER_BYTES_MAX and not was_full:
            self._transport.pause_reading()

    def _break(self) -> None:
        """Close the connection and fail the exchange, unless its response is already complete."""
        self._close()
        if self._state is not COMPLETE:
            error = Unanswered() if self._state is AWAITING_BYTE else Broken()
            self._state = CONNECTION_LOST[self._state]
            self._wake(error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is not READING_BODY and not self._begin_head():
            self._close()
            return
        parts = self._buffer
        kept = len(parts)
        is_http = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = False
        if len(parts) == kept:  # no byte of the body
            self._overhead_bytes += len(data)
            is_http = is_http and self._overhead_bytes <= HEAD_BYTES_MAX
        else:
            self._overhead_bytes = 0
            receiver = self._receiver
            if receiver is not None:
                try:
                    wants_more = receiver(parts.pop() if len(parts) == 1 else self.take_arrived())
                except Exception as error:  # noqa: BLE001 it is raised again in the task that receives
                    self._stop_receiving(error)
                else:
                    if wants_more:
                        end_s = self._end_s
                        next_s = self._loop.time() + self._idle_s
                        self._deadline.at_s = next_s if next_s < end_s else end_s  # no earlier than it was
                    else:
                        self._stop_receiving()
            elif self._state is READING_BODY:
                self._note_buffered(sum(map(len, parts[kept:])))
        if self._state is not state and self.status:  # the head or the body is complete
            self._wake()
        if not is_http:
            self._break()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        del self._parser  # it refers back to the connection, which is freed at once without it
        if self._state is READING_BODY and exc is None and not FRAMING & self.headers.keys():
            self._state = BODY_COMPLETE[self._state]
            self._wake()
        else:
            self._break()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        if self.status:
            raise Broken  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        fields = self._fields
        if sum(map(len, chain.from_iterable(fields))) > HEAD_BYTES_MAX:
            raise Broken  # however much came in one read
        headers = self.headers = dict(fields)
        if len(headers) < len(fields) and sum(name in FRAMING for name, _ in fields) > len(FRAMING & headers.keys()):
            raise Broken  # a body that is framed twice
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise Broken  # a body that cannot be read
        fields.clear()
        status = self._parser.get_status_code()
        if status >= 200:  # else it is an interim response: the real one follows
            self.status = status
            self._state = HEAD_COMPLETE[self._state]

    @property
    def on_body(self) -> Callable[[bytes], None]:
        """The parser reads it once: a part of a body costs no call of Python's."""
        return self._buffer.append

    def on_message_complete(self) -> None:
        if self.status:
            self._state = BODY_COMPLETE[self._state]
            self._keeps_alive = self._parser.should_keep_alive()


class GuardedConnection(ClientConnection):
    """A connection to a server that is not trusted.

    Each part of a body takes 1 µs of the event loop, however small it is: millions of tiny chunks are refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spare_bytes = 0

    def on_headers_complete(self) -> None:
        self._spare_bytes = SMALL_PARTS * PART_BYTES
        super().on_headers_complete()

    def on_body(self, data: bytes) -> None:
        self._spare_bytes += len(data) - PART_BYTES
        if self._spare_bytes < 0:
            raise Broken
        self._buffer.append(data)


async def read_body(response: ClientConnection, deadline_s: float, bytes_max: int) -> bytes:
    """Read the body. Reading stops once there are more than `bytes_max` bytes."""
    if (whole := response.take_whole()) is not None:
        return whole
    parts, size_bytes = list[bytes](), 0

    def keep(data: bytes) -> bool:
        nonlocal size_bytes
        parts.append(data)
        size_bytes += len(data)
        return size_bytes <= bytes_max

    await response.receive(keep, deadline_s)
    return b"".join(parts)


def _slices(pieces: Pieces) -> Iterator[bytearray]:
    """The bytes of all pieces: a system call for each of many small ones would hold the event loop."""
    joined = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), SLICE_BYTES):
            joined += memoryview(piece)[start : start + SLICE_BYTES]
            if len(joined) >= SLICE_BYTES:
                yield joined
                joined = bytearray()
    yield joined
