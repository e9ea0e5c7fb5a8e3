"""The server's end of a client's connection: HTTP/1.1, one exchange at a time, in the order of the requests.

    state          meaning                                                      reading deadline
    AWAITING_HEAD  new, or bytes have arrived that do not complete a head       head_s, which more bytes do not extend
    SERVING        an exchange runs; requests that arrive meanwhile wait        none
    SERVING_LAST   an exchange runs; input is discarded                         none
    IDLE           the reply is complete and nothing has arrived since          keep_alive_s
    CLOSING        closes once everything is sent; input is discarded           none
    LOST           the connection is gone                                       none

    event                                  from                    to
    the head of a request is complete      AWAITING_HEAD, IDLE     SERVING
    other bytes arrive                     IDLE                    AWAITING_HEAD
    a request without keep-alive is read   SERVING                 SERVING_LAST
    a reply is complete, another waits     SERVING, SERVING_LAST   unchanged: the next exchange runs
    a reply is complete, none waits        SERVING                 IDLE, or AWAITING_HEAD where a head has begun
    the last reply is complete             SERVING, SERVING_LAST   CLOSING
    bytes are malformed                    where input is read     CLOSING, after a 400 if no reply has begun
    a reading deadline passes, or shut()   AWAITING_HEAD, IDLE     CLOSING
    shut()                                 SERVING                 SERVING_LAST once the request's body is complete
    abort(), or the unread deadline        any but LOST            CLOSING
    the connection is lost                 any                     LOST: the running exchange is interrupted

Nothing is read while a request waits, or while the application does not read a large body: this is backpressure.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import cast

import msgspec

from cadenza.http.body import BodyLimits, RequestBody
from cadenza.http.deadline import Deadline
from cadenza.http.exchange import COMPLETE, PENDING, Exchange, Interruption, Request
from cadenza.http.forwarded import TrustedProxies, plain_address
from cadenza.http.request_parser import Malformed, RequestParser
from cadenza.http.write_flow import WriteFlow

Serve = Callable[[Exchange], Awaitable[None]]


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What a client may ask of a connection."""

    head_bytes_max: int = 64 * 1024
    head_s: float = 20.0  # for the head of a request to arrive, on a new connection too
    unread_s: float = 30.0  # for a client to read what was sent
    keep_alive_s: float = 75.0  # longer than most clients keep an idle connection, so that the client closes it first


class ConnectionSettings(msgspec.Struct, frozen=True):
    """The limits, the application's reply to bytes that are not HTTP, and the trusted proxies."""

    limits: ConnectionLimits = ConnectionLimits()
    body_limits: BodyLimits = BodyLimits()
    malformed_headers: bytes = b""
    malformed_body: bytes = b""
    proxies: TrustedProxies = TrustedProxies()

    @property
    def malformed_reply(self) -> bytes:
        length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(self.malformed_body)
        return b"".join((b"HTTP/1.1 400 Bad Request\r\n", self.malformed_headers, length, self.malformed_body))


class State(Enum):
    """See the module's table."""

    AWAITING_HEAD = auto()
    SERVING = auto()
    SERVING_LAST = auto()
    IDLE = auto()
    CLOSING = auto()
    LOST = auto()


AWAITING_HEAD, SERVING, SERVING_LAST, IDLE, CLOSING, LOST = State  # as names: Python 3.11 is slow to look up State.X
DISCARDING = (SERVING_LAST, CLOSING, LOST)
CLOSED = (CLOSING, LOST)


class Connection(asyncio.Protocol):
    """The transport of each of its exchanges, and the receiver of what its parser reads."""

    def __init__(self, serve: Serve, settings: ConnectionSettings, open_connections: set["Connection"]) -> None:
        self.peer = ""
        self.proxies = settings.proxies
        self.is_congested = False
        self._serve = serve
        self._settings = settings
        self._open_connections = open_connections
        self._state = AWAITING_HEAD
        self._parser = RequestParser(self, settings.limits.head_bytes_max)
        self._exchange: Exchange | None = None  # the one that runs
        self._task: asyncio.Task[None] | None = None  # serves it
        self._waiting: deque[Exchange] = deque()  # pipelined behind it
        self._deadline = Deadline(asyncio.get_running_loop(), self._close)
        self._write_flow = WriteFlow(settings.limits.unread_s, self.abort)

    def shut(self) -> None:
        """Close it, once the running exchange is done."""
        self._waiting.clear()
        if self._exchange:
            self._exchange.close_after_reply()
            if self._exchange.body.is_complete and self._state is SERVING:
                self._discard_input()
        elif self._state is not LOST:
            self._close()

    def abort(self) -> None:
        """Close it now, without sending the rest."""
        if self._state is not LOST:
            self._state = CLOSING
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_connections.add(self)
        self.peer = plain_address((transport.get_extra_info("peername") or ("",))[0])
        limits = self._settings.limits
        if hasattr(socket, "TCP_USER_TIMEOUT") and (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limits.unread_s * 1000))
        self._deadline.set_after(limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self._state = LOST
        self._open_connections.discard(self)
        self._deadline.close()
        self.is_congested = False
        self._write_flow.close()
        self._waiting.clear()
        if self._exchange:
            self._exchange.interrupt(Interruption.DISCONNECT)
            self._exchange = self._task = None

    def data_received(self, data: bytes) -> None:
        if self._state in DISCARDING:
            return
        try:
            self._parser.feed(data)
        except Malformed:
            if self._state not in DISCARDING:
                self._refuse()
            return
        if self._state is IDLE:
            self._await_head()

    def pause_writing(self) -> None:
        self.is_congested = True
        self._write_flow.pause()

    def resume_writing(self) -> None:
        self.is_congested = False
        self._write_flow.resume()

    # the parser's receiver

    def receive_head(self, request: Request, *, keep_alive: bool) -> None:
        if self._state is SERVING_LAST:
            return
        body = RequestBody(self._settings.body_limits, expects_continue=request.expects_continue)
        exchange = Exchange(self, request, body, keep_alive=keep_alive)
        if self._exchange:
            self._waiting.append(exchange)
            self._transport.pause_reading()
        else:
            self._state = SERVING
            self._deadline.clear()
            self._begin(exchange)

    def receive_body(self, data: bytes) -> None:
        exchange = self._arriving()
        if exchange and not exchange.body.feed(data):
            self._transport.pause_reading()

    def receive_end(self) -> None:
        if exchange := self._arriving():
            exchange.body.end()
            if not exchange.keep_alive:
                self._discard_input()
            elif exchange is self._exchange:
                self._transport.resume_reading()  # a client that disconnects is noticed only while we read

    def _arriving(self) -> Exchange | None:
        """The exchange whose request is being read; None if input is discarded."""
        if self._state is SERVING_LAST:
            return None
        return self._waiting[-1] if self._waiting else self._exchange

    # the transport of an exchange

    def write(self, data: bytes) -> None:
        state = self._state
        if state is not CLOSING and state is not LOST:
            self._transport.write(data)

    async def drain(self) -> None:
        await self._write_flow.drain()

    def receive_more(self, exchange: Exchange) -> None:
        assert exchange is self._exchange or self._state in CLOSED
        self._resume_reading()

    def reply_complete(self, exchange: Exchange) -> None:
        if self._state in CLOSED:
            return
        assert exchange is self._exchange
        self._exchange = self._task = None
        if not exchange.keep_alive:
            self._close()
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        elif self._parser.is_in_head:
            self._await_head()
        else:
            self._state = IDLE
            self._deadline.set_after(self._settings.limits.keep_alive_s)
        self._resume_reading()

    def cancel(self, exchange: Exchange) -> None:
        assert exchange is self._exchange
        assert self._task
        self._task.cancel()

    # serving

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task = asyncio.get_running_loop().create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        """Serve an exchange. If the application returns without a complete reply, abort the connection."""
        try:
            await self._serve(exchange)
        except Exception:  # noqa: BLE001, S110 the application has logged it
            pass
        finally:
            if exchange.state is not COMPLETE:
                self.abort()

    def _refuse(self) -> None:
        """Answer malformed bytes with a 400 and close. If a reply has begun, only close."""
        if self._exchange is None or self._exchange.state is PENDING:
            self._transport.write(self._settings.malformed_reply)
        self._close()

    def _await_head(self) -> None:
        self._state = AWAITING_HEAD
        self._deadline.set_after(self._settings.limits.head_s)

    def _discard_input(self) -> None:
        self._state = SERVING_LAST
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Read on, unless a pipelined request waits: then the client must wait too."""
        if not self._waiting and self._state not in CLOSED:
            self._transport.resume_reading()

    def _close(self) -> None:
        self._state = CLOSING
        self._deadline.clear()
        self._transport.close()
