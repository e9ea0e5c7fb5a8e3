"""A site behind the service's own HTTP protocol, in the test's own loop, and a client that has one connection to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

import uvicorn
import uvloop
from uvicorn.server import ServerState

from cadenza import listen
from cadenza.gateway.call import Receive, Scope, Send

WAIT_S = 10.0
SLOW_S = 0.9  # what the slow page takes
PIECE = b"x" * 65_536
PIECES = 128
TURNS = 4  # of the loop
Story = Callable[["Client"], Coroutine[None, None, None]]


class Site:
    """An application with a path for each way to answer. It knows what it was asked, and who left."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        match scope["path"]:
            case "/large":
                for _ in range(PIECES):
                    await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            case "/endless":
                pouring = asyncio.create_task(self._pour(send))
                while (await receive())["type"] != "http.disconnect":
                    pass
                pouring.cancel()
                self.left.set()
            case "/slow":
                await asyncio.sleep(SLOW_S)
            case "/body":
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b"done"})

    async def _pour(self, send: Send) -> None:
        while True:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})


class Client:
    """One connection to the site."""

    def __init__(self, site: Site, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.site = site
        self._reader = reader
        self._writer = writer

    async def say(self, data: bytes) -> None:
        """All of it, and the server has time to read it."""
        with contextlib.suppress(ConnectionError):  # what was cut cannot be said
            self._writer.write(data)
            await self._writer.drain()
            for _ in range(TURNS):
                await asyncio.sleep(0)

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


@contextlib.asynccontextmanager
async def visiting() -> AsyncIterator[Client]:
    site = Site()
    config = uvicorn.Config(site, http=listen.CadenzaProtocol, ws="none", lifespan="off", log_config=listen.QUIET)
    config.timeout_keep_alive = listen.KEEP_ALIVE_S
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: listen.CadenzaProtocol(config=config, server_state=state, app_state={}),
        sock=listen.bind("127.0.0.1", 0),
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1024)
    try:
        yield Client(site, reader, writer)
    finally:
        writer.transport.abort()
        server.close()
        await asyncio.gather(*state.tasks, return_exceptions=True)


def tell(story: Story) -> None:
    """On uvloop, as the service does."""

    async def run() -> None:
        async with visiting() as client:
            await story(client)

    uvloop.run(run())
