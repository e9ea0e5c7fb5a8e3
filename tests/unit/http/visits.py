"""A site that answers by Calls over the service's own connections, on the service's own loop, and a client of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine

import uvloop

from cadenza.http.connection import Connection
from cadenza.http.exchange import JSON, ClientGone, Exchange, Uploads
from cadenza.server.server import bind
from tests.schemas import check_error

WAIT_S = 10.0
SLOW_S = 0.9  # what the slow page takes
PIECE = b"x" * 65_536
PIECES = 128
TURNS = 4  # of the loop
LAST_CHUNK = b"0\r\n\r\n"
WHOLE = b'{"path": 1}'
BUFFER_BYTES = 4096  # of a client, so that one that does not read is seen not to

Reply = tuple[bytes, list[bytes], bytes]


class SeenConnection(Connection):
    """A connection of which it is known how much it has read, and whether it goes on."""

    received_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        super().data_received(data)

    @property
    def is_reading(self) -> bool:
        return self._transport.is_reading()


class Site:
    """An application with a path for each way to answer. It knows what it was asked, and who left."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gone: list[str] = []  # the ids of those that left
        self.sent = 0
        self.connections: set[Connection] = set()
        self.left, self.full, self.go, self.passed, self.watching = (asyncio.Event() for _ in range(5))

    @property
    def asked(self) -> list[str]:
        return [exchange.path for exchange in self.exchanges]

    @property
    def is_quiet(self) -> bool:
        """Whether all that was asked has been served, to the end or not."""
        return all(exchange.task and exchange.task.done() for exchange in self.exchanges)

    async def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        with contextlib.suppress(ClientGone):
            match exchange.path:
                case "/body" | "/body-when-told":
                    if exchange.path == "/body-when-told":
                        await self.go.wait()
                    exchange.respond(200, await exchange.body(Uploads()), JSON)
                case "/when-told":
                    await self.go.wait()
                    exchange.respond(200, WHOLE, JSON)
                case "/asked":
                    exchange.respond(200, said_of(exchange), JSON)
                case "/raise":
                    raise ZeroDivisionError
                case "/silence":
                    pass
                case "/hang-up":
                    exchange.close_after_reply()
                    exchange.respond(503, b"{}", JSON)
                case "/none":
                    exchange.respond(204, b"", b"")
                case "/late" | "/wait" | "/answer-and-stay":
                    await self._wait(exchange)
                case "/stream" | "/cut" | "/raise-amid" | "/flow" | "/large" | "/endless" | "/slow":
                    await self._stream(exchange)
                case _:
                    exchange.respond(200, WHOLE, JSON)

    async def _stream(self, exchange: Exchange) -> None:
        exchange.start_stream()
        match exchange.path:
            case "/raise-amid":
                await exchange.write(b"one")
                raise ZeroDivisionError
            case "/flow":
                await self._flow(exchange)
            case "/large":
                for _ in range(PIECES):
                    await exchange.write(PIECE)
            case "/endless":
                await self._pour(exchange)
            case "/slow":
                await asyncio.sleep(SLOW_S)
            case _:
                await exchange.write(b"one")
                assert exchange.write_now(b"two and a bit more")
        exchange.finish_stream(b"done", is_cut=exchange.path == "/cut")

    async def _flow(self, exchange: Exchange) -> None:
        """As much as goes at once, and more when the client has read."""
        while exchange.write_now(PIECE):
            self.sent += 1
            await asyncio.sleep(0)
        self.full.set()
        await self.go.wait()
        while not exchange.write_now(b"more"):  # noqa: ASYNC110 no event tells of it
            await asyncio.sleep(0)

    async def _pour(self, exchange: Exchange) -> None:
        try:
            async with exchange.until_gone():
                while True:
                    await exchange.write(PIECE)
        finally:
            self.left.set()

    async def _wait(self, exchange: Exchange) -> None:
        if exchange.path == "/late":
            await self.go.wait()
        try:
            async with exchange.until_gone():
                self.watching.set()
                if exchange.path == "/answer-and-stay":
                    exchange.respond(200, b"{}", JSON)
                    await self.go.wait()
                else:
                    await exchange.body(Uploads())
                    await asyncio.Event().wait()
            self.passed.set()
        except ClientGone:
            self.gone.append(exchange.request_id)
            self.left.set()

    async def end(self) -> None:
        tasks = [exchange.task for exchange in self.exchanges if exchange.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def said_of(exchange: Exchange) -> bytes:
    """What the site knows of a request."""
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.fields]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers.items()}
    known = {"method": exchange.method, "query": exchange.query.decode("latin-1"), "fields": fields, "headers": headers}
    return json.dumps(known).encode()


class Client:
    """One connection to the site."""

    def __init__(self, site: Site, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.site = site
        self._reader = reader
        self._writer = writer

    async def say(self, data: bytes) -> None:
        """All of it, and the server has time to read it."""
        if self._writer.is_closing():  # what was cut cannot be said
            return
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def begin_to_say(self, data: bytes) -> None:
        """Without waiting for the server to take it."""
        self._writer.write(data)

    def far_end(self) -> SeenConnection:
        """The server's side, where there is but one."""
        [connection] = self.site.connections
        assert isinstance(connection, SeenConnection)
        return connection

    async def hear(self, wanted: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readuntil(wanted)

    async def hear_some(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read(len(PIECE))

    async def hear_the_end(self) -> bytes:
        """All that comes until the connection ends, which it must."""
        said = b""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while read := await self._reader.read(len(PIECE)):
                    said += read
        return said

    async def reply(self) -> Reply:
        """One reply: its first line, its header lines, and its body as it went over the wire."""
        head = await self.hear(b"\r\n\r\n")
        first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        if sizes:
            async with asyncio.timeout(WAIT_S):
                return first, lines, await self._reader.readexactly(sizes[0])
        is_chunked = b"transfer-encoding: chunked" in lines
        return first, lines, await self.hear(LAST_CHUNK) if is_chunked else b""

    async def check_served(self) -> None:
        """The connection serves a request, and nothing comes before its reply."""
        await self.say(request("/whole", request_id="the-next-one"))
        first, lines, body = await self.reply()
        assert (first, body) == (b"HTTP/1.1 200 OK", WHOLE)
        assert b"x-request-id: the-next-one" in lines

    def abort(self) -> None:
        self._writer.transport.abort()

    async def leave(self) -> None:
        """And the server has seen it."""
        self.abort()
        await until(lambda: not self.site.connections)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 no event tells of it
            await asyncio.sleep(0.001)


async def connect_to(site: Site, address: tuple[str, int]) -> Client:
    return Client(site, *await asyncio.open_connection(*address, limit=BUFFER_BYTES))


@contextlib.asynccontextmanager
async def visiting(site: Site) -> AsyncIterator[Callable[[], Coroutine[None, None, Client]]]:
    """A way to connect to the site, as often as one likes."""
    clients: list[Client] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: SeenConnection(site.serve, site.connections), sock=bind("127.0.0.1", 0)
    )

    async def connect() -> Client:
        clients.append(await connect_to(site, server.sockets[0].getsockname()))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.abort()
        server.close()
        await site.end()


def tell(story: Callable[[Client], Coroutine[None, None, None]]) -> None:
    """On uvloop, as the service does."""

    async def run() -> None:
        async with visiting(Site()) as connect:
            await story(await connect())

    uvloop.run(run())


def tell_of_two(story: Callable[[Client, Client], Coroutine[None, None, None]]) -> None:
    """Likewise, of two connections to one site."""

    async def run() -> None:
        async with visiting(Site()) as connect:
            await story(await connect(), await connect())

    uvloop.run(run())


def request(path: str, body: bytes = b"", method: str = "POST", request_id: str = "r-1", more: str = "") -> bytes:
    fields = f"host: here\r\nx-request-id: {request_id}\r\n{more}"
    return f"{method} {path} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body


def check_refused(said: bytes) -> None:
    """One reply and no more: 400 in the error shape, on a connection that closes."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), said[:200]
    assert b"connection: close" in head.split(b"\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")
    check_error(json.loads(body), "invalid_request_error")
