"""The HTTP server of one process: it accepts connections, and ends well.

The first signal to end drains: the service goes on listening, to say that it takes nothing new, until what runs has
ended or the limit is reached. The second one ends what runs. Either way all is settled before the process ends.
"""

import asyncio
import contextlib
import multiprocessing
import pkgutil
import resource
import signal
import socket
import sys
from collections.abc import Awaitable
from typing import Protocol

import uvloop

from cadenza.http.connection import Connection
from cadenza.http.exchange import Exchange

SEND_BUFFER_BYTES = 128 * 1024  # the kernel's: small, so that a slow reader is seen to read
BACKLOG = 2048
CUT_S = 10.0  # for what was cut to be charged
LAST_S = 5.0  # for connections to close once nothing runs any more
FILES_MAX = 65_536
SWITCH_S = 0.0005  # for a thread to give way: small requests beside huge ones take 23 ms, and 63 with Python's own 5 ms
STARTUP_FAILURE = 3  # the exit code of a process whose application could not start


class Service(Protocol):
    """An application, and what the server tells it."""

    @property
    def drain_s(self) -> float: ...

    async def start(self) -> bool:
        """Whether it has; the reason why not is told by itself."""

    async def stop(self) -> None: ...

    def serve(self, exchange: Exchange, /) -> Awaitable[None]: ...

    def drain(self) -> None: ...

    def cut(self) -> None: ...

    async def until_idle(self) -> None: ...

    async def reload(self) -> None: ...


class Server:
    """A server that drains at the first signal, cuts at the second, and has the config read again at SIGHUP."""

    def __init__(self, service: Service, listener: socket.socket, *, heeds_interrupt: bool) -> None:
        self._service = service
        self._listener = listener
        self._heeds_interrupt = heeds_interrupt
        self._connections: set[Connection] = set()
        self._is_over = asyncio.Event()
        self._is_serving = False
        self._is_outdated = False  # a hangup came before it could be heeded
        self._draining: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Until a signal, and until all is drained; the exit code."""
        self._loop = asyncio.get_running_loop()
        self._heed_signals()
        if not await self._service.start():
            return STARTUP_FAILURE
        try:
            await self._serve()
        finally:
            await self._service.stop()
        return 0

    async def _serve(self) -> None:
        if self._is_over.is_set():
            return
        self._is_serving = True
        server = await self._loop.create_server(
            lambda: Connection(self._service.serve, self._connections), sock=self._listener, backlog=BACKLOG
        )
        if self._is_outdated:
            self._reload()
        await self._is_over.wait()
        server.close()
        for connection in list(self._connections):
            connection.shut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while self._connections:  # noqa: ASYNC110 each goes by itself, and there are few
                    await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()

    def _heed_signals(self) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, self._drain_or_cut)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._loop.add_signal_handler(signal.SIGINT, self._drain_or_cut if self._heeds_interrupt else _do_nothing)
        if parent := multiprocessing.parent_process():
            self._loop.add_reader(parent.sentinel, self._outlive, parent.sentinel)

    def _outlive(self, sentinel: int) -> None:
        """The process that started this one is gone, and nobody else would end it."""
        self._loop.remove_reader(sentinel)
        self._drain_or_cut()

    def _drain_or_cut(self) -> None:
        if not self._is_serving:
            self._is_over.set()
        elif self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self._service.cut()

    async def _drain(self) -> None:
        service = self._service
        service.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(service.drain_s):
                await service.until_idle()
        service.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CUT_S):
                await service.until_idle()
        self._is_over.set()

    def _reload(self) -> None:
        if self._is_serving:
            self._reloading = asyncio.create_task(self._service.reload())
        else:
            self._is_outdated = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken is found out before anything else begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener


def serve_one(service: Service | str, listener: socket.socket, *, heeds_interrupt: bool = True) -> None:
    """Serve in this process until a signal; returns when all is drained. The service may be the name of a factory."""
    _allow_many_files()
    sys.setswitchinterval(SWITCH_S)

    async def run() -> int:
        built: Service = pkgutil.resolve_name(service)() if isinstance(service, str) else service
        return await Server(built, listener, heeds_interrupt=heeds_interrupt).run()

    if exit_code := uvloop.run(run()):
        sys.exit(exit_code)


def _allow_many_files() -> None:
    """Each stream has two connections: as many as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _do_nothing() -> None:
    """A Ctrl-C reaches every process of a terminal; whoever started this one heeds it."""
