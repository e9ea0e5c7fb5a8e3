"""The server's end of a client's connection: HTTP/1.1, one exchange at a time, in the order of the requests.

Input that arrives while an exchange runs is not parsed, so at most one request of a connection is known. Nor is any
parsed while the client does not read its replies, or during a pause after a refusal. Little of it is read; the rest
waits in the kernel, which is backpressure. The same happens while the application does not read a
large body.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from enum import IntEnum, auto
from functools import partial
from typing import cast

import msgspec

from cadenza.http.body import AWAITING_CONTINUE, MIB, RECEIVING, BodyLimits, RequestBody
from cadenza.http.body import COMPLETE as BODY_COMPLETE
from cadenza.http.connections import Connections
from cadenza.http.exchange import COMPLETE, PENDING, STATUS_LINES, Exchange, Interruption, Request
from cadenza.http.flow import Deadline, Pause, WriteFlow
from cadenza.http.headers import TrustedProxies, plain_address
from cadenza.http.request_parser import NEEDS_INPUT, TURN_ENDED, Malformed, RequestParser

Serve = Callable[[Exchange], Awaitable[None]]
RefuseMalformed = Callable[[int], tuple[bytes, bytes]]  # a status; the headers and the body of the reply


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What a client may ask of a connection."""

    head_bytes_max: int = 64 * 1024
    head_s: float = 20.0  # for the head of a request to arrive, on a new connection too
    unread_s: float = 30.0  # for a client to read what was sent
    keep_alive_s: float = 75.0  # longer than most clients keep an idle connection, so that the client closes it first
    waiting_bytes_max: int = 16 * 1024  # behind a request that is served; with more, reading stops
    linger_s: float = 30.0  # for a client to notice that it is refused; many send their whole body first
    linger_silence_s: float = 5.0
    linger_bytes_max: int = 64 * MIB
    pause_s_max: float = 5.0  # the longest pause of a client that does not back off


class ConnectionSettings(msgspec.Struct, frozen=True):
    """The limits, the application's reply to bytes that are not HTTP, and the trusted proxies."""

    limits: ConnectionLimits = ConnectionLimits()
    body_limits: BodyLimits = BodyLimits()
    proxies: TrustedProxies = TrustedProxies()
    refuse_malformed: RefuseMalformed = lambda _status: (b"", b"")


class ConnectionState(IntEnum):
    """What a connection does. The reading deadline of a state is set where the state is entered."""

    AWAITING_HEAD = auto()  # new, or bytes have arrived that do not complete a head. Deadline: head_s
    SERVING = auto()  # an exchange runs; what arrives behind its request waits
    SERVING_LAST = auto()  # an exchange runs; input is discarded
    IDLE = auto()  # the reply is complete, and nothing was parsed since. Deadline: keep_alive_s
    LINGERING = auto()  # the last reply is sent; input is discarded. Deadline: linger_s, linger_silence_s
    CLOSING = auto()  # closes once everything is sent; input is discarded
    LOST = auto()  # the connection is gone


# As names: Python 3.11 is slow to look up ConnectionState.X.
AWAITING_HEAD, SERVING, SERVING_LAST, IDLE, LINGERING, CLOSING, LOST = ConnectionState
DISCARDING = (SERVING_LAST, LINGERING, CLOSING, LOST)
CLOSED = (LINGERING, CLOSING, LOST)

# The transitions: for each event, the states in which it may happen, and the next state of each. In any other state
# the event is a programming error, and a KeyError.
HEAD_READ = {AWAITING_HEAD: SERVING, IDLE: SERVING}
PART_OF_HEAD_READ = {IDLE: AWAITING_HEAD}
LAST_REQUEST_READ = {SERVING: SERVING_LAST}  # it or shut() asked to close, and its body is complete
REPLY_COMPLETE = {SERVING: IDLE}  # then input that waited is parsed
LINGER = dict.fromkeys((AWAITING_HEAD, IDLE, SERVING, SERVING_LAST), LINGERING)  # malformed or unwanted input
CLOSE = {**dict.fromkeys(LINGER, CLOSING), LINGERING: CLOSING}  # the last reply, a deadline, shut() or a limit
ABORT = {**CLOSE, CLOSING: CLOSING}  # at any time, also when a client does not read
CONNECTION_LOST = dict.fromkeys(ConnectionState, LOST)  # a running exchange is interrupted


class Connection(asyncio.Protocol):
    """The transport of each of its exchanges, and the receiver of what its parser reads."""

    write: Callable[[bytes], object]  # the transport's own, until the connection is closed

    def __init__(self, serve: Serve, settings: ConnectionSettings, connections: Connections) -> None:
        self.peer = ""
        self.is_congested = False
        self._serve = serve
        self._settings = settings
        self._connections = connections
        self._state = AWAITING_HEAD
        self._is_reading = True
        self._parser = RequestParser(self, settings.limits.head_bytes_max)
        self._exchange: Exchange | None = None  # the one that runs
        self._task: asyncio.Task[None] | None = None  # serves it
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop, self._close)
        self._write_flow = WriteFlow(settings.limits.unread_s, self.abort)
        self._discarded_bytes = 0  # of a body that the application did not read, or while it lingers
        self._linger_end_s = 0.0
        self._pause = Pause(self._loop, settings.limits.pause_s_max, self._parse_if_allowed)

    @property
    def proxies(self) -> TrustedProxies:
        return self._settings.proxies

    def shut(self) -> None:
        """Close it, once the running exchange is done."""
        if self._exchange:
            self._exchange.close_after_reply()
            if self._exchange.body.is_complete and self._state is SERVING:
                self._discard_input()
        elif self._state not in CLOSED:
            self._close()

    def abort(self) -> None:
        """Close it now, without sending the rest."""
        if self._state is not LOST:
            self._state = ABORT[self._state]
            self.write = _discard
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._connections.add(self)
        self.peer = plain_address((transport.get_extra_info("peername") or ("",))[0])
        self._deadline.set_after(self._settings.limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self._state = CONNECTION_LOST[self._state]
        self.write = _discard
        self._connections.remove(self)
        self._deadline.close()
        self._pause.close()
        self._parser.close()
        self.is_congested = False
        self._write_flow.close()
        if self._exchange:
            self._exchange.interrupt(Interruption.DISCONNECT)
            self._exchange = self._task = None

    def data_received(self, data: bytes) -> None:
        state = self._state
        if (state is IDLE or state is AWAITING_HEAD) and not (self.is_congested or self._pause.timer):  # the usual case
            self._parse(data)
        elif state not in DISCARDING:
            self._parser.input.add(data)
            self._pause.note_input()
            self._parse_if_allowed()
        elif state is LINGERING:
            self._linger_on(len(data))

    def pause_writing(self) -> None:
        self.is_congested = True
        self._write_flow.pause()

    def resume_writing(self) -> None:
        self.is_congested = False
        self._write_flow.resume()
        self._parse_if_allowed()

    # the input

    def _parse_if_allowed(self) -> None:
        if self._parser.input.data and not self._must_wait():
            self._parse()
        else:
            self._read_on()

    def _parse(self, data: bytes = b"") -> None:
        """Parse what has arrived, and `data` behind it, up to the end of a request that is served now."""
        parser = self._parser
        while True:
            try:
                progress = parser.read(data)
            except Malformed as fault:
                self._refuse(fault.status)
                return
            if self._state is IDLE:
                self._await_head()
            if progress is TURN_ENDED:
                self._pause_reading()
                self._loop.call_soon(self._parse_if_allowed)
                return
            if not parser.input.data or self._must_wait():
                break
            data = b""
        if progress is NEEDS_INPUT or parser.input.data or not self._is_reading:
            self._read_on()

    def _must_wait(self) -> bool:
        """Whether the input stays unparsed: another request is served, the client does not read, or a pause runs."""
        if self._exchange:
            return self._exchange.body.is_complete or self._state in DISCARDING
        if self._pause.timer and not self._parser.is_in_body:
            return True
        return self._state in DISCARDING or (self.is_congested and not self._parser.is_in_body)

    def _read_on(self) -> None:
        """Read from the socket, unless too much waits already: input, or a body that the application does not read."""
        exchange = self._exchange
        is_full = exchange is not None and exchange.body.is_full
        is_full = is_full or len(self._parser.input) > self._settings.limits.waiting_bytes_max
        if is_full and self._state not in DISCARDING:
            self._pause_reading()
        elif not self._is_reading and self._state not in (CLOSING, LOST):
            self._is_reading = True
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    # the parser's receiver

    def receive_head(self, request: Request, whole: bytes = b"") -> None:
        self._state = HEAD_READ[self._state]
        self._deadline.at_s = math.inf
        connections = self._connections
        connections.quiet.pop(self, None)
        limits = self._settings.body_limits
        if whole:
            body = RequestBody(limits, BODY_COMPLETE, [whole], len(whole), is_complete=True)
        else:
            body = RequestBody(limits, AWAITING_CONTINUE if request.expects_continue else RECEIVING)
        self._exchange = exchange = Exchange(self, request, body, request.keep_alive)
        if connections.turnstile.pass_now():
            self._task = self._loop.create_task(self._run(exchange))
        else:
            connections.turnstile.wait(partial(self._start, exchange))

    def receive_body(self, data: bytes) -> None:
        if self._exchange:
            self._exchange.body.feed(data)
        elif self._state not in CLOSED:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self._settings.body_limits.rest_bytes_max:
                self._linger()

    def receive_end(self) -> None:
        self._discarded_bytes = 0
        if exchange := self._exchange:
            exchange.body.end()
            if not exchange.keep_alive:
                self._discard_input()

    # the transport of an exchange

    async def drain(self) -> None:
        await self._write_flow.drain()

    def receive_more(self, exchange: Exchange) -> None:
        assert exchange is self._exchange or self._state in CLOSED
        self._read_on()

    def finish(self, exchange: Exchange, data: bytes) -> None:
        state = self._state
        if state is not SERVING and state is not SERVING_LAST:
            return
        assert exchange is self._exchange
        self._transport.write(data)
        self._exchange = self._task = None
        if not exchange.keep_alive:
            if exchange.body.is_complete and not self._parser.input.data:
                self._close()
            else:
                self._linger()
            return
        self._state = REPLY_COMPLETE[state]
        now_s = self._loop.time()
        self._deadline.set(now_s + self._settings.limits.keep_alive_s)
        self._connections.quiet[self] = now_s
        if exchange.pause_s:
            self._pause.begin(exchange.pause_s)
        else:
            self._pause.ignored = 0
        if self._parser.input.data or not self._is_reading:
            self._parse_if_allowed()

    def cancel(self, exchange: Exchange) -> None:
        assert exchange is self._exchange
        if self._task:  # it may wait at the turnstile
            self._task.cancel()

    def claim(self, owner: str) -> bool:
        return self._connections.claim(self, owner)

    # serving

    def _start(self, exchange: Exchange) -> None:
        if exchange is self._exchange and exchange.interruption is None:
            self._task = self._loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        """Serve an exchange. If the application returns without a complete reply, abort the connection."""
        try:
            await self._serve(exchange)
        except ConnectionAbortedError:
            pass  # the application wants the connection closed, and has logged why
        except Exception as error:  # noqa: BLE001 one exchange must not stop the connections of others
            self._loop.call_exception_handler({"message": "an exchange failed", "exception": error})
        finally:
            if exchange.state is not COMPLETE and exchange is self._exchange:
                self.abort()

    def _refuse(self, status: int) -> None:
        """Refuse malformed bytes, and close. If a reply has begun, only close."""
        if self._exchange is None or self._exchange.state is PENDING:
            headers, body = self._settings.refuse_malformed(status)
            framing = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(b"".join((STATUS_LINES[status], headers, framing, body)))
        self._linger()

    def _await_head(self) -> None:
        self._state = PART_OF_HEAD_READ[self._state]
        self._deadline.set_after(self._settings.limits.head_s)

    def _discard_input(self) -> None:
        self._state = LAST_REQUEST_READ[self._state]
        self._read_on()

    def _close(self) -> None:
        self._state = CLOSE[self._state]
        self.write = _discard
        self._deadline.clear()
        self._transport.close()

    # a lingering close: a reset would destroy the reply on its way, if the client still sends

    def _linger(self) -> None:
        """Close the sending side. Discard input until the client closes too, within limits."""
        if not self._connections.may_linger(self):
            self._close()
            return
        self._state = LINGER[self._state]
        if self._exchange:
            self._exchange.interrupt(Interruption.DISCONNECT)
            self._exchange = self._task = None
        self._discarded_bytes = 0
        self._linger_end_s = self._loop.time() + self._settings.limits.linger_s
        self._transport.write_eof()
        self._linger_on(0)
        self._read_on()

    def _linger_on(self, size_bytes: int) -> None:
        limits = self._settings.limits
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > limits.linger_bytes_max:
            self._close()
        else:
            self._deadline.set(min(self._loop.time() + limits.linger_silence_s, self._linger_end_s))


def _discard(data: bytes) -> None:
    """For what is written after the connection was closed."""
