"""One HTTP exchange: a request and the one reply to it.

The connection creates it when the head of a request is complete. The application reads the body and sends the reply.
Its bytes go straight to the transport, without a queue or another task.
"""

import asyncio
import time
from copy import copy
from email.utils import formatdate
from enum import Enum, IntEnum, auto
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import msgspec

from cadenza.http.body import BodyBudget, BodyTimeout, RequestBody
from cadenza.http.headers import Headers, TrustedProxies

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
CONTENT_LENGTH = b"content-length"
CHUNKED = b"transfer-encoding: chunked\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = (204, 304)  # replies of these statuses end with their head


class ReplyState(IntEnum):
    """How far the reply is."""

    PENDING = auto()
    STREAMING = auto()
    COMPLETE = auto()
    ABANDONED = auto()  # the client is gone: what is sent is dropped


PENDING, STREAMING, COMPLETE, ABANDONED = ReplyState  # as names: Python 3.11 is slow to look up ReplyState.X

# The transitions: for each method of an exchange, the states in which it may be called, and the next state of each.
# In any other state the call is a programming error, and a KeyError before a byte is sent.
RESPOND = {PENDING: COMPLETE, ABANDONED: ABANDONED}
START_STREAM = {PENDING: STREAMING, ABANDONED: ABANDONED}
WRITE = {STREAMING: STREAMING, ABANDONED: ABANDONED}
FINISH_STREAM = {STREAMING: COMPLETE, ABANDONED: ABANDONED}
DISCONNECT = {PENDING: ABANDONED, STREAMING: ABANDONED, ABANDONED: ABANDONED, COMPLETE: COMPLETE}


class Interruption(Enum):
    """Why the task that serves an exchange was cancelled."""

    DISCONNECT = auto()  # the client left before its reply was complete
    SHUTDOWN = auto()  # the service ends
    REVOKED = auto()  # the key of the client was revoked


class Transport(Protocol):
    """The connection under an exchange."""

    peer: str  # the address of the other end
    is_congested: bool  # the client reads more slowly than the service writes

    @property
    def proxies(self) -> TrustedProxies: ...

    def write(self, data: bytes, /) -> object: ...

    async def drain(self) -> None:
        """Return once the client reads again, or is gone."""

    def receive_more(self, exchange: "Exchange", /) -> None:
        """The application wants more of the request's body."""

    def finish(self, exchange: "Exchange", data: bytes, /) -> None:
        """Write the last bytes of the reply. Then serve the next request, or close."""

    def cancel(self, exchange: "Exchange", /) -> None:
        """Cancel the task that serves the exchange."""

    def claim(self, owner: str, /) -> bool:
        """The connection belongs to this owner from now on. False if the owner has too many."""


class Request(msgspec.Struct, eq=False):
    """The head of a request. `fields` are the headers as they came, names in lower case.

    The application keeps in `memo` what it derives from the head: later requests of the connection with the same head
    have it from the start.
    """

    method: str
    path: str
    query: bytes
    fields: Headers
    is_http_1_0: bool = False
    keep_alive: bool = True  # the connection, after the reply
    expects_continue: bool = False  # the client waits for "100 Continue" before it sends its body
    headers: dict[bytes, bytes] = msgspec.field(default_factory=dict)  # the first of a repeated header counts
    memo: bytes = b""

    __repr__ = object.__repr__  # shows no key

    def __post_init__(self) -> None:
        self.headers = dict(reversed(self.fields))
        if self.is_http_1_0:
            self.keep_alive = False
        else:
            self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"

    def with_length(self, length: bytes, at: int) -> "Request":
        """The same head for a body of another length, which is the value of the field at this place."""
        request = copy(self)
        request.fields = fields = self.fields.copy()
        request.headers = headers = self.headers.copy()
        fields[at], headers[CONTENT_LENGTH] = (CONTENT_LENGTH, length), length
        return request


class Exchange(msgspec.Struct, eq=False):
    """A request and its reply."""

    transport: Transport
    request: Request
    body: RequestBody
    keep_alive: bool  # the connection, after the reply
    state: ReplyState = PENDING
    status: int | None = None  # of the reply, once it has begun
    interruption: Interruption | None = None
    started_s: float = msgspec.field(default_factory=time.perf_counter)
    first_byte_s: float | None = None
    last_write_s: float = 0.0  # by the monotonic clock
    gap_s: float = 0.0  # the longest between two chunks of a stream, as its relay noted it
    pause_s: float = 0.0  # before the next request of the connection is read

    __repr__ = object.__repr__  # shows no content

    @property
    def peer(self) -> str:
        return self.transport.peer

    @property
    def client_address(self) -> str:
        """The peer's address or, behind trusted proxies, the one that they name."""
        return self.transport.proxies.client_address(self.transport.peer, self.request.fields)

    @property
    def scheme(self) -> str:
        """The scheme that the client uses. The service itself speaks plain HTTP."""
        forwarded = self.request.headers.get(b"x-forwarded-proto")
        return self.transport.proxies.scheme(self.transport.peer, "http", forwarded)

    @property
    def is_forwarded(self) -> bool:
        """Whether the request came through a trusted proxy."""
        return self.transport.proxies.has_forwarded(self.transport.peer, self.request.fields)

    @property
    def is_congested(self) -> bool:
        return self.transport.is_congested

    async def read_body(self, budget: BodyBudget) -> bytes | bytearray:
        """The whole body; BodyTooLarge, BodyTimeout or BodyMemoryFull where a limit is passed."""
        if self.body.is_complete:
            return self.body.take(budget)
        length = self.request.headers.get(b"content-length", b"")
        try:
            return await self.body.read(budget, length, self._receive_more)
        except BodyTimeout:
            self.close_after_reply()
            raise

    def _receive_more(self) -> None:
        if self.body.is_awaiting_continue and self.state is PENDING:
            self.body.note_continue()
            self.transport.write(CONTINUE)
        self.transport.receive_more(self)

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole reply. HEAD gets its head alone, and a 204 or a 304 has no body."""
        after = RESPOND[self.state]
        if after is ABANDONED:
            return
        if status in BODILESS:
            body = framing = b""
        else:
            framing = b"content-length: %d\r\n" % len(body)
        data = self._begin(status, headers, framing, b"" if self.request.method == "HEAD" else body)
        self.state = after
        self.transport.finish(self, data)

    def respond_to_head(self, status: int, headers: bytes) -> None:
        """Send the head of a reply whose length the service does not know or has put into `headers`."""
        after = RESPOND[self.state]
        if after is ABANDONED:
            return
        assert self.request.method == "HEAD"
        data = self._begin(status, headers, b"", b"")
        self.state = after
        self.transport.finish(self, data)

    def start_stream(self, headers: bytes, status: int = 200, first: bytes = b"", *, is_early: bool = False) -> None:
        """Send the head of a stream, and its first bytes in the same write.

        An early head only keeps the client waiting: `begin_reply` comes later.
        """
        after = START_STREAM[self.state]
        if after is ABANDONED:
            return
        assert status not in BODILESS
        assert self.request.method != "HEAD"
        framing = b"" if self.request.is_http_1_0 else CHUNKED
        self.transport.write(self._begin(status, headers, framing, self._chunk(first)))
        self.state = after
        if first:
            self.last_write_s = time.monotonic()
        if is_early:
            self.status = self.first_byte_s = None

    def begin_reply(self) -> None:
        """The reply begins whose head was sent early."""
        self.status, self.first_byte_s = 200, time.perf_counter()

    def write(self, data: bytes) -> bool:
        """Hand bytes of the stream to the transport; False where the client is gone.

        Bytes handed over count as delivered, even if the client disconnects before it reads them.
        """
        if self.state is not STREAMING:
            return WRITE[self.state] is STREAMING  # False, or a KeyError
        self.transport.write(data if self.request.is_http_1_0 or not data else b"%x\r\n%b\r\n" % (len(data), data))
        self.last_write_s = time.monotonic()
        return True

    async def drain(self) -> None:
        """Return once the client reads again. This is where backpressure begins."""
        if self.transport.is_congested:
            await self.transport.drain()

    def finish_stream(self, data: bytes) -> None:
        after = FINISH_STREAM[self.state]
        if after is ABANDONED:
            return
        last = b"" if self.request.is_http_1_0 else LAST_CHUNK
        self.state = after
        self.transport.finish(self, self._chunk(data) + last)

    def abort_stream(self, data: bytes) -> None:
        """End a stream that broke off. `data` tells the client; then the connection is closed."""
        self.close_after_reply()
        self.finish_stream(data)

    def close_after_reply(self) -> None:
        """Serve no further request on this connection."""
        self.keep_alive = False

    def hold_back(self, pause_s: float) -> None:
        """Do not read the next request before `pause_s` have passed: the client should have backed off.

        Not behind a proxy, whose connections carry requests of many clients.
        """
        if not self.is_forwarded:
            self.pause_s = pause_s

    def interrupt(self, reason: Interruption) -> None:
        """Cancel the task that serves this exchange, once, unless the reply is complete."""
        if self.state is COMPLETE:
            return
        if reason is Interruption.DISCONNECT:
            self.state = DISCONNECT[self.state]
        if self.interruption is None:
            self.interruption = reason
            self.transport.cancel(self)

    def absorb_cancellation(self) -> Interruption | None:
        """For an `except CancelledError`: why the exchange was interrupted, so that its task may go on.

        None where the task was cancelled for any other reason: raise the error again.
        """
        task = asyncio.current_task()
        if self.interruption is None or task is None or task.uncancel():
            return None
        return self.interruption

    def _chunk(self, data: bytes) -> bytes:
        """The bytes of a stream on the wire. No data is no chunk: an empty one would end the body."""
        return data if self.request.is_http_1_0 or not data else b"%x\r\n%b\r\n" % (len(data), data)

    def _begin(self, status: int, headers: bytes, framing: bytes, body: bytes) -> bytes:
        """The reply begins: the bytes of its head, and of as much of the body as there is."""
        self.status = status
        self.first_byte_s = time.perf_counter()
        if not self.body.is_complete:
            self._reply_early()
        connection = b"" if self.keep_alive else b"connection: close\r\n"
        date = _date_line(int(time.time()))
        return b"".join((STATUS_LINES[status], date, headers, framing, connection, b"\r\n", body))

    def _reply_early(self) -> None:
        """The reply comes before the whole body. Decide whether to read the rest, to keep the connection."""
        is_undecided = self.body.is_awaiting_continue  # the next bytes may be the body or another request
        if is_undecided or self.body.has_large_rest(self.request.headers.get(b"content-length", b"")):
            self.close_after_reply()


@lru_cache(maxsize=2)
def _date_line(now_s: int) -> bytes:
    return f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
