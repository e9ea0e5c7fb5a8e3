"""A client's connection: HTTP/1.1 on asyncio and httptools, one exchange at a time, in the order of the requests.

A client is given so long to send the head of a request and to take what it is sent; then it is cut. Bytes that are not
HTTP get the error shape too. Requests that come before the last one is answered wait, and nothing more is read of them.
"""

import asyncio
import math
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import unquote

import httptools

from cadenza.core.errors import Headers, InvalidRequest, render_error
from cadenza.http.exchange import Exchange, encode_headers

HEAD_BYTES_MAX = 64 * 1024
HEAD_S = 20.0  # for the head of a request to arrive, and for a new connection to begin with one
UNREAD_S = 30.0  # for a client to take what was sent
KEEP_ALIVE_S = 75.0  # longer than clients keep an idle connection, so that they close it and not we
FRAMING = (b"content-length", b"transfer-encoding")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Serve = Callable[[Exchange], Awaitable[None]]


class Connection(asyncio.Protocol):
    """The parser's callbacks make calls, which are served one after the other; it is the wire of each.

    One timer for the connection, moved only where it would go off too late: none is made for an ordinary request.
    """

    def __init__(self, serve: Serve, open_connections: set["Connection"]) -> None:
        self.peer = ""
        self.is_full = False
        self._serve = serve
        self._open_connections = open_connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None  # the one that is answered
        self._waiting: deque[Exchange] = deque()  # those that came too early
        self._incoming: Exchange | None = None  # the one whose body is being read
        self._is_lost = False  # the connection is gone, or is going
        self._discards_input = False  # what comes is not for us
        self._is_paused = False
        self._is_in_head = True
        self._is_late = False  # what it is waited for must come soon, or the connection is cut
        self._is_mixed = False  # what came holds more than a part of a head, or of what is no body behind it
        self._void_bytes = 0  # of such a part, so far
        self._deadline_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_connections.add(self)
        self.peer = (transport.get_extra_info("peername") or ("",))[0]
        peer = transport.get_extra_info("socket")
        if peer is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_S * 1000))
        self._expect_soon()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self._is_lost = True
        self._open_connections.discard(self)
        for timer in (self._timer, self._unread_timer):
            if timer:
                timer.cancel()
        if self._drained:
            self._drained.set()
        self._waiting.clear()
        if self._exchange:
            self._exchange.note_gone()

    def shut(self) -> None:
        """Close it, once what is being answered is."""
        self._waiting.clear()
        if self._exchange:
            self._exchange.close_after_reply()
        else:
            self._transport.close()

    def abort(self) -> None:
        if not self._is_lost:
            self._transport.abort()

    # What a client sends.

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        self._is_mixed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # to another protocol: answered as if not asked
            self._read_body_alone(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if not self._discards_input:
                self._refuse()
            return
        if not self._is_mixed:
            self._void_bytes += len(data)
            if self._void_bytes > HEAD_BYTES_MAX:
                self._refuse()
                return
        if not self._is_late and not self._is_paused and (self._is_in_head or self._exchange is None):
            self._expect_soon()

    def _read_body_alone(self, rest: bytes) -> None:
        """The parser takes what follows for another protocol: a new one is told how long the body is, and reads it."""
        self._parser = httptools.HttpRequestParser(_BodyReader(self))
        framing = encode_headers([field for field in self._fields if field[0] in FRAMING])
        self.data_received(b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest))

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._void_bytes = self._field_bytes = 0
        self._target = b""
        self._fields: Headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._field_bytes += len(url)
        if self._field_bytes > HEAD_BYTES_MAX:
            raise ValueError  # the parser makes an error of it, and the client gets a 400

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > HEAD_BYTES_MAX:
            raise ValueError
        if self._is_in_head:  # and not behind the body
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_in_head = self._is_late = False
        self._is_mixed = True
        self._deadline_s = math.inf
        parser = self._parser
        path, query = _path_and_query(self._target)
        is_old = parser.get_http_version() == "1.0"
        exchange = Exchange(self, parser.get_method().decode(), path, query, self._fields, is_old=is_old)
        if parser.should_upgrade() or not parser.should_keep_alive():
            exchange.close_after_reply()
        self._incoming = exchange
        if self._exchange:
            self._waiting.append(exchange)
            self._pause()
        else:
            self._begin(exchange)

    def on_body(self, data: bytes) -> None:
        self._is_mixed = True
        self._void_bytes = 0
        exchange = self._incoming
        if exchange and not exchange.is_finished and not exchange.feed(data):
            self._pause()

    def on_message_complete(self) -> None:
        self._is_mixed = True
        exchange = self._incoming
        if exchange and not self._parser.should_upgrade():  # else its body is still to be read
            self._incoming = None
            exchange.end_body()
            self._discards_input = not exchange.keeps_alive
            if exchange is self._exchange:
                self._resume()  # so that it is seen to leave

    def _refuse(self) -> None:
        """What came is not HTTP, or too large. A reply that has begun can only be cut off."""
        self._discards_input = True
        if self._exchange is None or not self._exchange.is_started:
            body = render_error(
                "This is not a valid HTTP/1.1 request, or its headers are too large.", InvalidRequest.type
            )
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-should-retry: false\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
        self._transport.close()

    # What it is answered.

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.task = self._loop.create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        """Whoever serves it answers everything that can be answered. What is left without an answer is cut."""
        try:
            await self._serve(exchange)
        except Exception:  # noqa: BLE001 it was logged where it was met
            exchange.close_after_reply()
        finally:
            if not exchange.is_finished:
                self.abort()

    def write(self, data: bytes) -> None:
        if not self._is_lost:
            self._transport.write(data)

    async def drain(self) -> None:
        if self.is_full and not self._is_lost:
            self._drained = self._drained or asyncio.Event()
            await self._drained.wait()

    def read_on(self) -> None:
        exchange = self._incoming
        if exchange and exchange.expects_continue:
            exchange.expects_continue = False
            self.write(CONTINUE)
        self._resume()

    def finish(self, exchange: Exchange) -> None:
        assert exchange is self._exchange
        self._exchange = None
        if self._is_lost:
            return
        if not exchange.keeps_alive:
            self._discards_input = True
            self._transport.close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._resume()
            if not self._is_in_head:
                self._set_deadline(self._loop.time() + KEEP_ALIVE_S)
            elif not self._is_late:
                self._expect_soon()

    # How fast, and for how long.

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self._is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_full = True
        self._unread_timer = self._loop.call_later(UNREAD_S, self._transport.abort)

    def resume_writing(self) -> None:
        self.is_full = False
        if self._unread_timer:
            self._unread_timer.cancel()
        if self._drained:
            self._drained.set()
            self._drained = None

    def _expect_soon(self) -> None:
        self._is_late = True
        self._set_deadline(self._loop.time() + HEAD_S)

    def _set_deadline(self, at_s: float) -> None:
        self._deadline_s = at_s
        if self._timer and self._timer.when() > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(at_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline_s:
            if self._deadline_s < math.inf:
                self._set_deadline(self._deadline_s)
        elif self._is_late:
            self._transport.abort()
        else:
            self._transport.close()


class _BodyReader:
    """What a parser tells that reads a body alone."""

    def __init__(self, connection: Connection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete


def _path_and_query(target: bytes) -> tuple[str, bytes]:
    """Of an ordinary target the path stands there as it is; ValueError for what is none."""
    if not target.startswith(b"/") or b"#" in target:
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise ValueError from None
        path, query = url.path or b"/", url.query or b""
        if path == b"*":
            raise ValueError
    else:
        path, _, query = target.partition(b"?")
    return unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1"), query
