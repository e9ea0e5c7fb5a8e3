"""The HTTP server of one process: it accepts connections, and ends without losing a reply.

    state     SIGTERM or SIGINT                SIGHUP                by itself
    STARTING  STOPPED                          reload once SERVING   SERVING once the service has started
    SERVING   DRAINING                         reload                -
    DRAINING  interrupt the running exchanges  reload                STOPPED once nothing runs, or at the limit
    STOPPED   no effect                        no effect             -

While it drains, the server goes on accepting connections, so that the service can refuse new requests with a reply.
At the end of the drain, running exchanges are interrupted. Connections close before the service stops.
"""

import asyncio
import contextlib
import multiprocessing
import pkgutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum, auto
from typing import Protocol

import msgspec
import uvloop

from cadenza.http.connection import ConnectionSettings
from cadenza.http.connections import Connections, ConnectionsLimits
from cadenza.http.exchange import Exchange
from cadenza.process import keep_freed_memory, protect_memory, return_memory_after_peaks
from cadenza.server.acceptor import Acceptor, allow_many_files, connections_limits

SEND_BUFFER_BYTES = 128 * 1024  # of the kernel: small, so that a slow reader is noticed
BACKLOG = 2048
SWITCH_INTERVAL_S = 0.0005  # small requests beside huge ones take 23 ms; with Python's default of 5 ms they take 63
STARTUP_FAILURE = 3  # the exit code of a process whose service could not start


class ServerLimits(msgspec.Struct, frozen=True):
    """How long a shutdown waits, and how many connections there may be. The service sets the limit of the drain."""

    interrupted_s: float = 10.0  # for interrupted exchanges to be settled
    close_s: float = 5.0  # for connections to close
    connections: ConnectionsLimits = ConnectionsLimits()


class Served(Protocol):
    """An application, as the server runs it."""

    @property
    def drain_s(self) -> float: ...

    @property
    def connection_settings(self) -> ConnectionSettings: ...

    async def start(self) -> bool:
        """False if it could not start. The service reports the reason itself."""

    async def stop(self) -> None: ...

    def serve(self, exchange: Exchange, /) -> Awaitable[None]: ...

    def refuse(self, exchange: Exchange, /) -> Awaitable[None]:
        """Serve an exchange of a connection for which there is no room: cheaply, and then close it."""

    def drain(self) -> None:
        """Refuse new requests from now on."""

    def interrupt(self) -> None:
        """Interrupt every exchange that runs."""

    async def until_idle(self) -> None:
        """Return once no exchange runs."""

    async def reload(self) -> None: ...


class ServerState(Enum):
    """See the module's table."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    STOPPED = auto()


class Server:
    """Runs one service on one listening socket."""

    def __init__(
        self,
        service: Served,
        listener: socket.socket,
        *,
        handles_sigint: bool = True,
        limits: ServerLimits | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self._service = service
        self._on_start = on_start
        self._listener = listener
        self._handles_sigint = handles_sigint
        self._limits = limits or ServerLimits()
        self._state = ServerState.STARTING
        self._connections = Connections(self._limits.connections)
        self._stopped = asyncio.Event()
        self._must_reload = False  # SIGHUP came during the start
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until a signal ends it. The exit code."""
        self._handle_signals(asyncio.get_running_loop())
        if not await self._service.start():
            return STARTUP_FAILURE
        if self._on_start:
            self._on_start()
        try:
            if self._state is ServerState.STARTING:
                await self._accept()
                await self._close_connections()
        finally:
            await self._service.stop()
        return 0

    async def _accept(self) -> None:
        self._state = ServerState.SERVING
        service = self._service
        acceptor = Acceptor(
            self._listener, service.serve, service.refuse, service.connection_settings, self._connections
        )
        returning = asyncio.create_task(return_memory_after_peaks(self._connections.__len__))
        try:
            if self._must_reload:
                self._reload()
            await self._stopped.wait()
        finally:
            acceptor.close()
            returning.cancel()

    async def _close_connections(self) -> None:
        for connection in self._connections:
            connection.shut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_s):
                while self._connections:  # noqa: ASYNC110 they close by themselves, and there are few
                    await asyncio.sleep(0.01)
        for connection in self._connections:
            connection.abort()

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGTERM, self._shut_down)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGINT, self._shut_down if self._handles_sigint else _ignore)
        if parent := multiprocessing.parent_process():
            loop.add_reader(parent.sentinel, self._parent_ended, loop, parent.sentinel)

    def _parent_ended(self, loop: asyncio.AbstractEventLoop, sentinel: int) -> None:
        """Without its parent no signal would ever end this process."""
        loop.remove_reader(sentinel)
        self._shut_down()

    def _shut_down(self) -> None:
        match self._state:
            case ServerState.STARTING:
                self._stop()
            case ServerState.SERVING:
                self._state = ServerState.DRAINING
                self._start_task(self._drain())
            case ServerState.DRAINING:
                self._service.interrupt()

    async def _drain(self) -> None:
        service = self._service
        service.drain()
        await self._until_idle(service.drain_s)
        service.interrupt()
        await self._until_idle(self._limits.interrupted_s)
        self._stop()

    async def _until_idle(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._service.until_idle()

    def _stop(self) -> None:
        self._state = ServerState.STOPPED
        self._stopped.set()

    def _reload(self) -> None:
        match self._state:
            case ServerState.STARTING:
                self._must_reload = True
            case ServerState.SERVING | ServerState.DRAINING:
                self._start_task(self._service.reload())

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, made before anything else, so that a port in use is found out early."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def serve_one(
    service: Served | str,
    listener: socket.socket,
    *,
    handles_sigint: bool = True,
    on_start: Callable[[], None] | None = None,
) -> None:
    """Serve in this process until a signal ends it. The service, or the name of a function that builds it."""
    protect_memory()
    keep_freed_memory()
    listener.set_inheritable(False)  # in a worker it is: no program that is started from here may keep the port
    limits = ServerLimits(connections=connections_limits(allow_many_files()))
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def run() -> int:
        built: Served = pkgutil.resolve_name(service)() if isinstance(service, str) else service
        server = Server(built, listener, handles_sigint=handles_sigint, limits=limits, on_start=on_start)
        return await server.run()

    if exit_code := uvloop.run(run()):
        sys.exit(exit_code)


def _ignore() -> None:
    """A terminal sends Ctrl-C to every process of its group. The parent acts on it for its workers."""
