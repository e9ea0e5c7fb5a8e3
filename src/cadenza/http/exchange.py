"""One HTTP exchange: a request with a bounded body, one answer or one stream, and the client's leaving.

Everything that a client sends is bounded here: the size of the body and the time that it may take. What is sent goes
straight to the connection, without a message or a task in between.
"""

import asyncio
import re
import secrets
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from cadenza.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    CadenzaError,
    Headers,
    InvalidRequest,
    RateLimited,
    error_headers,
    render_error,
)
from cadenza.http.events import write_event
from cadenza.http.forwarded import client_address

BODY_BYTES_MAX = 32 * 1024 * 1024
BODIES_BYTES_MAX = 16 * BODY_BYTES_MAX
UNREAD_BYTES_MAX = 64 * 1024  # of a body that nobody reads yet
UPLOAD_RETRY_S = 1.0
BODY_BYTES_PER_S_MIN = 32 * 1024
SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
JSON = b"content-type: application/json\r\n"
CORS = (
    b"access-control-allow-origin: *\r\n"
    b"access-control-expose-headers: x-request-id, x-should-retry, retry-after, retry-after-ms, x-cadenza-max-tokens, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests\r\n"
)
STREAM = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
GONE_STATUS = 499  # what the log and the metrics say of a client that left


class ClientGone(Exception):
    """The client closed the connection; nobody is there to answer."""


class Wire(Protocol):
    """The connection under a exchange."""

    peer: str  # the address at its other end
    is_full: bool  # the client does not take what was sent

    def write(self, data: bytes) -> None:
        """Nothing happens where the client is gone."""

    async def drain(self) -> None:
        """Returns when the client takes more, or is gone."""

    def read_on(self) -> None:
        """More of the body is wanted."""

    def finish(self, exchange: "Exchange") -> None:
        """The reply is whole: the next request may be answered, or the connection closed."""


class Uploads:
    """The bytes of all bodies that are in memory: so many clients with large ones may come that they must wait."""

    def __init__(self) -> None:
        self._left_bytes = BODIES_BYTES_MAX

    def take(self, size_bytes: int) -> None:
        if size_bytes > self._left_bytes:
            raise RateLimited("Too many large requests at once. Retry shortly.", UPLOAD_RETRY_S)
        self._left_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._left_bytes += size_bytes


class Exchange:
    """A request and the one answer to it. `fields` are its headers as they came, names in lower case."""

    def __init__(
        self, wire: Wire, method: str, path: str, query: bytes, fields: Headers, *, is_old: bool = False
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.fields = fields
        self.headers = dict(reversed(fields))  # of a repeated header the first counts
        self.request_id = _request_id(self.headers.get(b"x-request-id"))
        self.started_s = time.perf_counter()
        self.facts: dict[str, str | int] = {}  # what the log says of this request; never content
        self.status = GONE_STATUS
        self.more_lines = b""  # headers of the reply, beside those that every reply has
        self.first_byte_ms: int | None = None
        self.body_bytes = 0  # what was read of it
        self.body_s = 20.0  # for a body to come, and more for a large one
        self.written_s = 0.0  # when the last byte was written, by the monotonic clock
        self.is_started = False
        self.is_finished = False
        self.is_gone = False  # the client is, before its reply was whole
        self.is_cut = False  # by us, because the service ends
        self.keeps_alive = not is_old  # another request may follow on the connection
        self.task: asyncio.Task[None] | None = None  # what serves it
        self._wire = wire
        self._is_old = is_old  # HTTP/1.0: it knows no chunks, and a stream ends with the connection
        self._is_watched = False
        expected = b"" if is_old else self.headers.get(b"expect", b"")
        self.expects_continue = expected.lower() == b"100-continue"  # before it sends its body
        self._parts: list[bytes] = []  # of the body, as they came
        self._unread_bytes = 0
        self._is_whole = False  # all of the body has come
        self._more_came: asyncio.Future[None] | None = None

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def address(self) -> str:
        """Of whoever asked."""
        return client_address(self._wire.peer, self.fields)

    @property
    def is_whole(self) -> bool:
        return self._is_whole

    def feed(self, data: bytes) -> bool:
        """A part of the body came. Whether more may, before this is read."""
        self._parts.append(data)
        self._unread_bytes += len(data)
        self._tell_reader()
        return self._unread_bytes <= UNREAD_BYTES_MAX

    def end_body(self) -> None:
        self._is_whole = True
        self._tell_reader()

    async def body(self, uploads: Uploads) -> bytes:
        """The whole body, within the limits of size and time: a trickle is cut, a slow but steady upload is not."""
        if self._is_whole:
            whole = b"".join(self._parts)
            self._take(uploads, whole)
            return whole
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 20 or int(length) > BODY_BYTES_MAX):
            raise _too_large()
        parts, deadline_s = list[bytes](), asyncio.get_running_loop().time() + self.body_s
        try:
            async with asyncio.timeout_at(deadline_s) as clock:
                while True:
                    came = b"".join(self._parts)
                    self._parts.clear()
                    self._unread_bytes = 0
                    self._take(uploads, came)
                    parts.append(came)
                    if self.is_whole:
                        return b"".join(parts)
                    clock.reschedule(deadline_s + self.body_bytes / BODY_BYTES_PER_S_MIN)
                    await self._wait_for_more()
        except TimeoutError:
            self.close_after_reply()
            raise BodyTimeout(
                f"The body did not arrive in time: after {self.body_bytes:,} bytes the rest was still missing."
            ) from None

    def _take(self, uploads: Uploads, came: bytes) -> None:
        if self.body_bytes + len(came) > BODY_BYTES_MAX:
            raise _too_large()
        uploads.take(len(came))
        self.body_bytes += len(came)

    async def _wait_for_more(self) -> None:
        if self.is_gone:
            raise ClientGone
        self._more_came = asyncio.get_running_loop().create_future()
        self._wire.read_on()
        await self._more_came
        if self.is_gone:
            raise ClientGone

    def _tell_reader(self) -> None:
        if self._more_came and not self._more_came.done():
            self._more_came.set_result(None)

    def until_gone(self) -> "UntilGone":
        """What runs inside is cancelled at once when the client leaves, and ClientGone comes out."""
        return UntilGone(self)

    def watch(self) -> None:
        if self.is_gone:
            raise ClientGone
        self._is_watched = True

    def unwatch(self) -> None:
        self._is_watched = False

    def note_gone(self) -> None:
        """The connection is lost."""
        if not self.is_finished:
            self.is_gone = True
            self._tell_reader()
            if self._is_watched:
                assert self.task
                self.task.cancel()

    def cut(self) -> None:
        """End it now, whatever it is doing, unless its last byte is on its way."""
        if not self.is_finished and not self.is_cut:
            assert self.task
            self.is_cut = True
            self.task.cancel()

    def close_after_reply(self) -> None:
        """No further request on this connection."""
        self.keeps_alive = False

    def respond(self, status: int, body: bytes, lines: bytes) -> None:
        """An answer of the API, with the headers that each of them has."""
        self.reply(status, body, lines + self._api_lines())

    def reply(self, status: int, body: bytes, lines: bytes) -> None:
        """A whole answer."""
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        self._begin(status, lines + length, b"" if self.method == "HEAD" else body)
        self._finish()

    def start_stream(self) -> None:
        framing = b"" if self._is_old else b"transfer-encoding: chunked\r\n"
        self._begin(200, STREAM + self._api_lines() + framing, b"")

    async def write(self, data: bytes) -> None:
        """Returns when the client can take more."""
        self.send(data)
        await self.room()

    def send(self, data: bytes) -> bool:
        """Whether the client is there: then it is on its way, though it may wait for the client to take it."""
        if self.is_gone:
            return False
        self._wire.write(self._chunk(data))
        self.written_s = time.monotonic()
        return True

    async def room(self) -> None:
        """Returns when the client can take more: this is where back-pressure begins."""
        if self._wire.is_full:
            await self._wire.drain()

    def write_now(self, data: bytes) -> bool:
        """Whether it was sent: not where that would have to wait."""
        return not self._wire.is_full and self.send(data)

    def finish_stream(self, data: bytes, *, is_cut: bool) -> None:
        """A stream that was cut ends with its connection, so that nobody takes its end for a good one."""
        if is_cut:
            self.close_after_reply()
        self._wire.write(self._chunk(data) + (b"" if self._is_old else b"0\r\n\r\n"))
        self._finish()

    def fail(self, error: CadenzaError) -> None:
        """Say what went wrong: as the answer or, where it has begun, as the event that ends it."""
        if self.is_started:
            event = write_event(render_error(error.message, CadenzaError.type))
            self.finish_stream(b"\n" + event, is_cut=True)
        else:
            body = render_error(error.message, error.type)
            self.respond(error.status, body, JSON + encode_headers(error_headers(error)))

    def _chunk(self, data: bytes) -> bytes:
        return data if self._is_old else b"%x\r\n%b\r\n" % (len(data), data)

    def _api_lines(self) -> bytes:
        return b"%b%bx-request-id: %b\r\n" % (CORS, self.more_lines, self.request_id.encode())

    def _begin(self, status: int, lines: bytes, body: bytes) -> None:
        """The head of the reply, and of its body what there is."""
        assert not self.is_started
        self.is_started = True
        self.status = status
        self.first_byte_ms = round((time.perf_counter() - self.started_s) * 1000)
        if self.expects_continue and not self._is_whole:
            self.close_after_reply()  # it was never told: what follows may be its body, or the next request
        close = b"" if self.keeps_alive else b"connection: close\r\n"
        date = _date_line(int(time.time()))
        self._wire.write(b"".join((STATUS_LINES[status], date, lines, close, b"\r\n", body)))

    def _finish(self) -> None:
        self.is_finished = True
        self._wire.finish(self)


class UntilGone:
    """See Exchange.until_gone."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aenter__(self) -> None:
        self._exchange.watch()

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        exchange = self._exchange
        exchange.unwatch()
        if exc_type is asyncio.CancelledError and exchange.is_gone and exchange.task and exchange.task.uncancel() == 0:
            raise ClientGone from None


def encode_headers(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(maxsize=2)
def _date_line(now_s: int) -> bytes:
    return f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()


def _request_id(incoming: bytes | None) -> str:
    if incoming and SANE_ID.fullmatch(incoming):
        return incoming.decode()
    return "req_" + secrets.token_urlsafe(18)


def _too_large() -> InvalidRequest:
    return BodyTooLarge(f"The body is larger than {BODY_BYTES_MAX // 1024 // 1024} MiB, the most that is taken.")
