"""A server in the test's own loop: a test tells it, as a story, what to do with each connection, byte by byte."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Self

import msgspec

from cadenza.http.client import Connection, HttpClient
from tests.loopback import Request, read_request

WAIT_S = 10.0
LOCALHOST = "127.0.0.1"
TURNS = 4  # of the loop: enough for the other side to read what was sent


class Visit:
    """One connection, as the server sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.requests: list[Request] = []
        self.left = asyncio.Event()  # the client was seen to close the connection
        self.reader = reader
        self.writer = writer

    async def request(self) -> Request:
        self.requests.append(await read_request(self.reader))
        return self.requests[-1]

    async def say(self, *parts: bytes) -> None:
        """Each part goes out alone, and the client has time to read it before the next."""
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
        """Whatever the client still sends is passed over."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.left.set()


Story = Callable[[Visit], Coroutine[None, None, None]]


class Peer:
    """Plays its story with everyone who connects. A story that fails, fails the test; a client that leaves, ends it."""

    def __init__(self, story: Story, tls: ssl.SSLContext | None = None, host: str = LOCALHOST) -> None:
        self.visits: list[Visit] = []
        self._story = story
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
            await self._story(visit)
        except (ConnectionError, asyncio.IncompleteReadError):
            visit.left.set()
        finally:
            visit.writer.close()


def answering(*replies: bytes) -> Story:
    """One reply per request; after the last one the connection is closed."""

    async def story(visit: Visit) -> None:
        for reply in replies:
            await visit.request()
            await visit.say(reply)

    return story


def always(reply: bytes) -> Story:
    """The same reply to every request of every connection."""

    async def story(visit: Visit) -> None:
        while True:
            await visit.request()
            await visit.say(reply)

    return story


class Answer(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def read_all(response: Connection) -> bytes:
    parts = []
    while (part := await response.read()) is not None:
        parts.append(part)
    return b"".join(parts)


async def fetch(client: HttpClient, path: str = "/path", body: bytes = b"", connect_s: float = WAIT_S) -> Answer:
    async with asyncio.timeout(WAIT_S), client.request("POST", path, body, connect_s) as response:
        return Answer(response.status, response.headers, await read_all(response))


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await event.wait()


async def until(holds: Callable[[], bool]) -> None:
    """For what no event tells of: it is looked for at every turn of the loop."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client_of(url: str, proxy: str | None = None) -> AsyncIterator[HttpClient]:
    client = HttpClient(url, {"x-given": "as it is"}, proxy)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def talking(story: Story) -> AsyncIterator[tuple[HttpClient, Peer]]:
    async with Peer(story) as peer, client_of(peer.url) as client:
        yield client, peer


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port where connecting hangs: it listens, but has no room for one more."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((LOCALHOST, 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
