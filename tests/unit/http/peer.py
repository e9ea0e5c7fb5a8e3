"""An upstream in the test's own loop that plays a script on each connection, byte by byte."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Self

import msgspec

from cadenza.http.client import HttpClient
from cadenza.http.client_connection import ClientConnection
from tests.loopback import Request, read_request
from tests.unit.http.raw_client import WAIT_S, until

LOCALHOST = "127.0.0.1"
TURNS = 4  # of the loop, in which the client reads what was sent


class Visit:
    """One connection, as the upstream sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.requests: list[Request] = []
        self.left = asyncio.Event()  # the client has closed the connection
        self.reader = reader
        self.writer = writer

    async def request(self) -> Request:
        self.requests.append(await read_request(self.reader))
        return self.requests[-1]

    async def say(self, *parts: bytes) -> None:
        """Send each part alone, and give the client time to read it before the next."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def reset(self) -> None:
        peer: socket.socket = self.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_left(self) -> None:
        """Return once the client has closed the connection. What it still sends is discarded."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.left.set()


Script = Callable[[Visit], Coroutine[None, None, None]]


class Peer:
    """Plays its script on each connection. A script that fails fails the test; a client that disconnects ends it."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None, host: str = LOCALHOST) -> None:
        self.visits: list[Visit] = []
        self._script = script
        self._tls = tls
        self._host = host
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._welcome, self._host, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}/v1"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for visit in self.visits:
            if not visit.writer.is_closing():  # a secure transport cannot be aborted twice
                visit.writer.transport.abort()
            with contextlib.suppress(OSError):
                await visit.writer.wait_closed()
        for end in ends:
            if end is not None and not isinstance(end, asyncio.CancelledError):
                raise end

    @property
    def requests_per_visit(self) -> list[int]:
        return [len(visit.requests) for visit in self.visits]

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit(len(self.visits), reader, writer)
        self.visits.append(visit)
        self._tasks.append(asyncio.create_task(self._play(visit)))

    async def _play(self, visit: Visit) -> None:
        try:
            await self._script(visit)
        except (ConnectionError, asyncio.IncompleteReadError):
            visit.left.set()
        finally:
            visit.writer.close()


def responding(*replies: bytes) -> Script:
    """One response per request; after the last one the connection is closed."""

    async def script(visit: Visit) -> None:
        for reply in replies:
            await visit.request()
            await visit.say(reply)

    return script


def always(reply: bytes) -> Script:
    """The same response to every request on every connection."""

    async def script(visit: Visit) -> None:
        while True:
            await visit.request()
            await visit.say(reply)

    return script


class WholeResponse(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def read_part(response: ClientConnection) -> bytes | None:
    """The next part of the body; None at its end."""
    parts = list[bytes]()

    def take(part: bytes) -> bool:
        parts.append(part)
        return False

    was_stopped = await response.receive(take)
    assert len(parts) == was_stopped
    return parts[0] if parts else None


async def read_all(response: ClientConnection) -> bytes:
    """The rest of the body, in one go."""
    parts = list[bytes]()

    def take(part: bytes) -> bool:
        parts.append(part)
        return True

    assert not await response.receive(take)
    return b"".join(parts)


async def fetch(
    client: HttpClient, path: str = "/path", body: bytes = b"", connect_s: float = WAIT_S / 2
) -> WholeResponse:
    """The time to connect is the shorter one: a name server that does not answer makes a name Unreachable too."""
    async with asyncio.timeout(WAIT_S), client.request("POST", path, body, connect_s) as response:
        return WholeResponse(response.status, response.headers, await read_all(response))


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await event.wait()


async def client_leaves(peer: Peer) -> None:
    """Wait until the client has closed its first connection. The peer may accept it only after that."""
    await until(lambda: bool(peer.visits))
    await happens(peer.visits[0].left)


@contextlib.asynccontextmanager
async def client_of(url: str, proxy: str | None = None) -> AsyncIterator[HttpClient]:
    client = HttpClient(url, {"x-given": "as it is"}, proxy)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def talking(script: Script) -> AsyncIterator[tuple[HttpClient, Peer]]:
    async with Peer(script) as peer, client_of(peer.url) as client:
        yield client, peer


@contextlib.contextmanager
def silent_listener(host: str = LOCALHOST, port: int = 0) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listener, and the clients that fill its backlog, so that connecting hangs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((host, port))
        listener.listen(0)
        clients = [stack.enter_context(socket.socket(family)) for _ in range(8)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener, clients


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port where connecting hangs."""
    with silent_listener() as (listener, _):
        yield listener.getsockname()[1]


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can listen on meanwhile."""
    with socket.socket() as bound:
        bound.bind((LOCALHOST, 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """This process cannot open a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
