"""A site that answers by Calls over the service's own protocol, on its own loop, and a client that can leave."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import uvicorn
import uvloop
from uvicorn.server import ServerState

from cadenza import listen
from cadenza.gateway.call import JSON, WIRE, Call, ClientGone, Receive, Scope, Send, Uploads
from tests.unit.visits import PIECE, WAIT_S, Client, Site

DATE = (b"date", b"Sun, 15 Nov 2026 06:00:00 GMT")
LAST_CHUNK = b"0\r\n\r\n"


class WireSite(Site):
    """Answers by a Call, in the way that the path names."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.go, self.passed, self.watching = (asyncio.Event() for _ in range(4))
        self.sent = 0
        self.gone: list[str] = []
        self.state = ServerState()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send)
        self.asked.append(call.path)
        with contextlib.suppress(ClientGone):
            match call.path:
                case "/body":
                    await call.respond(200, await call.body(Uploads()), JSON)
                case "/none":
                    await call.respond(204, b"", [])
                case "/stream" | "/cut":
                    await self._stream(call, is_cut=call.path == "/cut")
                case "/flow":
                    await self._flow(call)
                case "/hang-up":
                    call.hang_up()
                    await call.respond(503, b"{}", JSON)
                case "/answer-and-stay":
                    async with call.until_gone():
                        await call.respond(200, b"{}", JSON)
                        await self.go.wait()
                    self.passed.set()
                case "/watch":
                    scope["extensions"][WIRE].on_gone(lambda: self.gone.append(call.path))
                    self.watching.set()
                    await self.go.wait()
                case "/late" | "/wait":
                    await self._wait(call)
                case _:
                    await call.respond(200, b'{"path": 1}', JSON)

    async def _stream(self, call: Call, *, is_cut: bool) -> None:
        await call.start_stream()
        await call.write(b"one")
        assert call.write_now(b"two and a bit more")
        await call.finish_stream(b"three", is_cut=is_cut)

    async def _flow(self, call: Call) -> None:
        """As much as goes at once, and more when the client has read."""
        await call.start_stream()
        while call.write_now(PIECE):
            self.sent += 1
            await asyncio.sleep(0)
        self.full.set()
        await self.go.wait()
        while not call.write_now(b"more"):  # noqa: ASYNC110 no event tells of it
            await asyncio.sleep(0)
        await call.finish_stream(b"end", is_cut=False)

    async def _wait(self, call: Call) -> None:
        if call.path == "/late":
            await self.go.wait()
        try:
            async with call.until_gone():
                self.watching.set()
                await asyncio.Event().wait()
        except ClientGone:
            self.gone.append(call.request_id)
            self.left.set()


class Visitor(Client):
    """A client that can leave."""

    def __init__(self, site: WireSite, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(site, reader, writer)
        self.wire = site

    async def leave(self) -> None:
        """And the server has seen it."""
        self._writer.transport.abort()
        await until(lambda: not self.wire.state.connections)

    async def reply(self) -> tuple[bytes, list[bytes], bytes]:
        """One reply: its first line, its header lines, and its body as it went over the wire."""
        head = await self.hear(b"\r\n\r\n")
        first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        if sizes:
            async with asyncio.timeout(WAIT_S):
                return first, lines, await self._reader.readexactly(sizes[0])
        is_chunked = b"transfer-encoding: chunked" in lines
        return first, lines, await self.hear(LAST_CHUNK) if is_chunked else b""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 no event tells of it
            await asyncio.sleep(0.001)


def tell(story: Callable[[Visitor], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        site = WireSite()
        site.state.default_headers = [DATE]
        config = uvicorn.Config(site, http=listen.CadenzaProtocol, ws="none", lifespan="off", log_config=listen.QUIET)
        config.timeout_keep_alive = listen.KEEP_ALIVE_S
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: listen.CadenzaProtocol(config=config, server_state=site.state, app_state={}),
            sock=listen.bind("127.0.0.1", 0),
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1024)
        try:
            await story(Visitor(site, reader, writer))
        finally:
            writer.transport.abort()
            server.close()
            for task in list(site.state.tasks):
                task.cancel()
            await asyncio.gather(*site.state.tasks, return_exceptions=True)

    uvloop.run(run())


def request(path: str, body: bytes = b"", method: str = "POST", request_id: str = "r-1", more: str = "") -> bytes:
    fields = f"host: here\r\nx-request-id: {request_id}\r\n{more}"
    return f"{method} {path} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body


def unchunked(body: bytes) -> list[bytes]:
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        chunks.append(body[: int(size, 16)])
        assert body[int(size, 16) :].startswith(b"\r\n")
        body = body[int(size, 16) + 2 :]
    return chunks
