"""The HTTP server: uvicorn (uvloop, httptools) set to our taste. Bytes that are not HTTP get the error shape too.

A client is given so long to send the head of a request and to take what it is sent; then it is cut. The first signal
to end drains: the service goes on listening, to say that it takes nothing new, until what runs has ended or the
limit is reached. The second one ends what runs. Either way all is settled before the process ends.
"""

import asyncio
import contextlib
import multiprocessing
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from cadenza.core.errors import Headers, InvalidRequest, render_error
from cadenza.gateway.call import HANG_UP, WIRE

HEAD_BYTES_MAX = 64 * 1024
HEAD_S = 20.0  # for the head of a request to arrive, and for a new connection to begin with one
UNREAD_S = 30.0  # for a client to take what was sent
KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, so that they close it and not we
SEND_BUFFER_BYTES = 128 * 1024  # the kernel's: small, so that a slow reader is seen to read
CUT_S = 10.0  # for what was cut to be charged
LAST_S = 5  # for connections to close once nothing runs any more
FILES_MAX = 65_536
STATE = "cadenza"  # where the application puts itself
# uvicorn's own log prints exceptions with their text; ours says where they came from, and no more.
QUIET = {"version": 1, "disable_existing_loggers": False, "loggers": {"uvicorn": {"level": "CRITICAL"}}}
ASGI = Callable[[Any, Any, Any], Awaitable[None]]


class CadenzaProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with bounds on heads and on readers, and our error object for what is not HTTP."""

    watched: "ConnectionWire | None" = None  # the request whose client's leaving is to be told
    _head_bytes = 0
    _field_bytes = 0
    _is_in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNREAD_S * 1000))
        self._head_timer = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._unread_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        if self.watched:
            self.watched.tell_gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer:
            self._unread_timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_idle = self.cycle is not None and self.cycle.response_complete
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("")
                return
        if (self._is_in_head or is_idle) and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > HEAD_BYTES_MAX:
            raise ValueError  # the parser makes an error of it, and the client gets a 400

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes, self._field_bytes = True, 0, 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_head = False
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None
        wire = ConnectionWire(self, self.cycle)
        extensions = {HANG_UP: wire.hang_up} if self.scope["method"] == "HEAD" else {HANG_UP: wire.hang_up, WIRE: wire}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]  # extensions of our own

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 uvicorn's sentence is not for our clients
        body = render_error("This is not a valid HTTP/1.1 request, or its headers are too large.", InvalidRequest.type)
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-should-retry: false\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        is_answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not is_answered:  # a reply that has begun can only be cut off
            self.transport.write(head + body)
        self.transport.close()


class ConnectionWire:
    """The way past ASGI's messages, for one request; uvicorn's own state of it is kept true."""

    def __init__(self, protocol: CadenzaProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._callback: Callable[[], None] | None = None

    def hang_up(self) -> None:
        self._cycle.keep_alive = False

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """The next request on the connection may be watched already when this one's watch ends."""
        self._callback = callback
        if callback:
            self._protocol.watched = self
            if self._cycle.disconnected:
                self._protocol.loop.call_soon(self.tell_gone)
        elif self._protocol.watched is self:
            self._protocol.watched = None

    def tell_gone(self) -> None:
        if self._callback:
            self._callback()

    def take_body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        return bytes(cycle.body)

    def begin(self, status: int, headers: Headers, lines: bytes, body: bytes | None) -> None:
        cycle = self._cycle
        assert not cycle.response_started
        if cycle.disconnected:
            return
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = body is None
        head = [STATUS_LINE[status], lines]
        head += [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        if body is None:
            head.append(b"transfer-encoding: chunked\r\n")
        if not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        cycle.transport.write(b"".join((*head, b"\r\n", body or b"")))
        if body is not None:
            self._complete()

    def write_now(self, data: bytes) -> bool:
        cycle = self._cycle
        if cycle.disconnected or cycle.flow.write_paused:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    async def write(self, data: bytes) -> None:
        cycle = self._cycle
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            if cycle.flow.write_paused:
                await cycle.flow.drain()

    def end(self, data: bytes) -> None:
        if not self._cycle.disconnected:
            self._cycle.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
            self._complete()

    def _complete(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class Service(Protocol):
    """What the server tells of signals: the application, which puts itself into the state of its lifespan."""

    @property
    def drain_s(self) -> float: ...

    def drain(self) -> None: ...

    def cut(self) -> None: ...

    async def until_idle(self) -> None: ...

    async def reload(self) -> None: ...


class Server(uvicorn.Server):
    """A server that drains at the first signal, cuts at the second, and has the config read again at SIGHUP."""

    _service: Service | None = None
    _draining: asyncio.Task[None] | None = None
    _reloading: asyncio.Task[None] | None = None

    def __init__(self, config: uvicorn.Config, *, heeds_interrupt: bool) -> None:
        super().__init__(config)
        self._heeds_interrupt = heeds_interrupt

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._service = self.lifespan.state.get(STATE)
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        if parent := multiprocessing.parent_process():
            self._loop.add_reader(parent.sentinel, self._outlive, parent.sentinel)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 uvicorn's signature
        if sig == signal.SIGINT and not self._heeds_interrupt:
            return
        if self._service is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._drain_or_cut, self._service)

    def _outlive(self, sentinel: int) -> None:
        """The process that started this one is gone, and nobody else would end it."""
        self._loop.remove_reader(sentinel)
        self.handle_exit(signal.SIGTERM, None)

    def _drain_or_cut(self, service: Service) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(service))
        else:
            service.cut()

    async def _drain(self, service: Service) -> None:
        service.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(service.drain_s):
                await service.until_idle()
        service.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CUT_S):
                await service.until_idle()
        self.should_exit = True

    def _reload(self) -> None:
        if self._service:
            self._reloading = asyncio.create_task(self._service.reload())


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken is found out before anything else begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.bind((host, port))
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def serve_one(app: ASGI | str, listener: socket.socket, *, heeds_interrupt: bool = True) -> None:
    """Serve in this process until a signal; returns when all is drained. The app may be the name of a factory."""
    _allow_many_files()
    config = uvicorn.Config(
        app,
        factory=isinstance(app, str),
        http=CadenzaProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=QUIET,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application sees to them where it needs them
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_S,
    )
    Server(config, heeds_interrupt=heeds_interrupt).run(sockets=[listener])


def _allow_many_files() -> None:
    """Each stream has two connections: as many as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
