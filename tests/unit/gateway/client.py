"""A client in memory: the transport of one exchange, which keeps everything that the exchange sends."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar

from cadenza.gateway.api import Router
from cadenza.gateway.endpoints import Endpoint
from cadenza.gateway.gateway import Gateway
from cadenza.http.body import BodyLimits, RequestBody
from cadenza.http.exchange import Exchange, Interruption, Request
from cadenza.http.headers import Headers, TrustedProxies

WAIT_S = 30.0
HEAD_END = b"\r\n\r\n"


class Client:
    """Reads whatever it is sent, unless it is told to stall. It serves one exchange."""

    added: ClassVar[tuple[Sequence[Endpoint], Mapping[str, str]]] = ((), {})  # by a part, to the router

    def __init__(self, peer: str = "") -> None:
        self.peer = peer
        self.proxies = TrustedProxies()
        self.is_congested = False
        self.stalls_at: Callable[[bytes], bool] = lambda _: False  # the write after which it stops reading
        self.sent: list[bytes] = []  # one item for each write
        self.replies = 0
        self.cancellations = 0
        self.waits_for_body = asyncio.Event()  # set when the application waits for the body
        self._reads_again = asyncio.Event()
        self._has_more = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    def open(
        self,
        headers: Headers | None = None,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        *,
        query: bytes = b"",
        body: bytes | None = b"",
    ) -> Exchange:
        """Send a request. A body of None is sent later or never."""
        request = Request(method, path, query, headers or [])
        self.exchange = Exchange(self, request, RequestBody(BodyLimits()), keep_alive=True)
        if body is not None:
            self.send_body(body)
        return self.exchange

    def send_body(self, body: bytes) -> None:
        self.exchange.body.feed(body)
        self.exchange.body.end()

    def run(self, serving: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the task that serves the exchange, and that an interruption cancels."""
        self._task = asyncio.create_task(serving)
        return self._task

    async def serve(self, gateway: Gateway) -> None:
        """Serve the exchange to its end."""
        async with asyncio.timeout(WAIT_S):
            router = Router(gateway)
            router.add(*self.added)
            await self.run(router.serve(self.exchange))

    def disconnect(self) -> None:
        self.exchange.interrupt(Interruption.DISCONNECT)

    def read_again(self) -> None:
        self.is_congested = False
        self._reads_again.set()

    # the transport of the exchange

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        self._has_more.set()
        self.is_congested = self.is_congested or self.stalls_at(data)

    async def drain(self) -> None:
        await self._reads_again.wait()

    def receive_more(self, exchange: Exchange) -> None:
        self.waits_for_body.set()

    def finish(self, exchange: Exchange, data: bytes) -> None:
        assert exchange is self.exchange
        self.write(data)
        self.replies += 1

    def cancel(self, exchange: Exchange) -> None:
        assert exchange is self.exchange
        self.cancellations += 1
        if self._task:
            self._task.cancel()

    def claim(self, owner: str) -> bool:
        return bool(owner)

    # what it was sent

    @property
    def status(self) -> int:
        return int(self._head[0].split()[1])

    @property
    def headers(self) -> dict[bytes, bytes]:
        found = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in self._head[1:])]
        assert len(dict(found)) == len(found), "a header was sent twice"
        return dict(found)

    @property
    def bodies(self) -> list[bytes]:
        """The chunks of a stream, without the last, empty one; or the one body of a whole reply."""
        if not self.sent:
            return []
        body = b"".join(self.sent).partition(HEAD_END)[2]
        if b"transfer-encoding" in self.headers:
            return [chunk for chunk in unchunk(body) if chunk]
        return [body] if body else []

    @property
    def has_end(self) -> bool:
        """Whether the last chunk of a stream was sent."""
        return unchunk(b"".join(self.sent).partition(HEAD_END)[2])[-1:] == [b""]

    @property
    def _head(self) -> list[bytes]:
        return b"".join(self.sent).partition(HEAD_END)[0].split(b"\r\n")

    async def until_sent(self, wanted: bytes, times: int = 1) -> None:
        """Return once this many bodies with these bytes were sent."""
        async with asyncio.timeout(WAIT_S):
            while sum(wanted in body for body in self.bodies) < times:
                self._has_more.clear()
                await self._has_more.wait()


def unchunk(body: bytes) -> list[bytes]:
    """The chunks of a chunked body, with the empty one at its end."""
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        chunks.append(body[: int(size, 16)])
        assert body[int(size, 16) :].startswith(b"\r\n")
        body = body[int(size, 16) + 2 :]
    return chunks


async def let_tasks_run() -> None:
    """Let every task that can run do so, a few times."""
    for _ in range(5):
        await asyncio.sleep(0)
