"""The other side of a exchange: the wire of a client that says what a test has it say and keeps what it is sent."""

import asyncio
from collections import deque
from collections.abc import Callable

from cadenza.http.exchange import Exchange

WAIT_S = 10.0
HEAD_END = b"\r\n\r\n"
Headers = list[tuple[bytes, bytes]]


class Client:
    """A wire in memory, and whoever is at its other end.

    It says one part of its body whenever more is wanted, and leaves behind the last of them. It takes whatever it is
    sent, unless it is told to stall.
    """

    def __init__(self, peer: str = "") -> None:
        self.peer = peer
        self.is_full = False
        self.reads = 0  # how often more of the body was wanted
        self.pause_s = 0.0  # before each part
        self.sent: list[bytes] = []  # as it was written
        self.was_kept: bool | None = None  # whether the connection was, once the reply was whole
        self.stalls_at: Callable[[bytes], bool] = lambda _: False
        self._takes_more = asyncio.Event()
        self._sent_more = asyncio.Event()
        self._parts: deque[tuple[bytes, bool]] = deque()
        self._is_wanted = False
        self._is_leaving = False
        self._exchange: Exchange | None = None

    def exchange(
        self,
        headers: Headers | None = None,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        query: bytes = b"",
        *,
        is_old: bool = False,
    ) -> Exchange:
        self._exchange = Exchange(self, method, path, query, headers or [], is_old=is_old)
        self._go_on()
        return self._exchange

    # What it does.

    def say(self, body: bytes, *, more: bool = False) -> None:
        self._parts.append((body, more))
        self._go_on()

    def leave(self) -> None:
        self._is_leaving = True
        self._go_on()

    def take_more(self) -> None:
        """Whatever stalled goes on."""
        self.is_full = False
        self._takes_more.set()

    def _go_on(self) -> None:
        if self._exchange is None:
            return
        if self._parts and self._is_wanted:
            self._is_wanted = False
            body, more = self._parts.popleft()
            self._exchange.feed(body)
            if not more:
                self._exchange.end_body()
        elif self._is_leaving and not self._parts:
            self._exchange.note_gone()

    # What the exchange has of it.

    def read_on(self) -> None:
        self.reads += 1
        self._is_wanted = True
        if self.pause_s:
            asyncio.get_running_loop().call_later(self.pause_s, self._go_on)
        else:
            self._go_on()

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        self._sent_more.set()
        self.is_full = self.is_full or self.stalls_at(data)

    async def drain(self) -> None:
        await self._takes_more.wait()

    def finish(self, exchange: Exchange) -> None:
        assert exchange is self._exchange
        assert self.was_kept is None, "a reply ended twice"
        self.was_kept = exchange.keeps_alive

    # What it was sent.

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
        """The chunks of a stream, without its end, or the one body of an answer."""
        if not self.sent:
            return []
        body = b"".join(self.sent).partition(HEAD_END)[2]
        if b"transfer-encoding" in self.headers:
            return [chunk for chunk in unchunked(body) if chunk]
        return [body] if body else []

    @property
    def has_end(self) -> bool:
        """Whether a stream ended as HTTP has it."""
        return unchunked(b"".join(self.sent).partition(HEAD_END)[2])[-1:] == [b""]

    @property
    def _head(self) -> list[bytes]:
        return b"".join(self.sent).partition(HEAD_END)[0].split(b"\r\n")

    async def sent_body(self, wanted: bytes, times: int = 1) -> None:
        """Returns once so many bodies that hold these bytes were sent."""
        async with asyncio.timeout(WAIT_S):
            while sum(wanted in body for body in self.bodies) < times:
                self._sent_more.clear()
                await self._sent_more.wait()


def unchunked(body: bytes) -> list[bytes]:
    """The chunks of a body, the empty one at its end among them."""
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        chunks.append(body[: int(size, 16)])
        assert body[int(size, 16) :].startswith(b"\r\n")
        body = body[int(size, 16) + 2 :]
    return chunks


async def let_tasks_run() -> None:
    """Give every task that can go on its turn, a few times over."""
    for _ in range(5):
        await asyncio.sleep(0)
