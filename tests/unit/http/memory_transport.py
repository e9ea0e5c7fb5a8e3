"""A transport in memory: it keeps what an exchange writes, and sends the parts of a body when they are asked for."""

import asyncio
from collections import deque

from cadenza.http.body import AWAITING_CONTINUE, RECEIVING, BodyLimits, RequestBody
from cadenza.http.exchange import Exchange, Request
from cadenza.http.headers import Headers, TrustedProxies


class MemoryTransport:
    """One exchange and the client at its other end."""

    def __init__(
        self,
        method: str = "POST",
        fields: Headers | None = None,
        *,
        limits: BodyLimits | None = None,
        is_http_1_0: bool = False,
        keep_alive: bool = True,
    ) -> None:
        self.peer = "127.0.0.1"
        self.proxies = TrustedProxies()
        self.is_congested = False
        self.written: list[bytes] = []
        self.asked_for_more = 0
        self.completed: list[bool] = []  # whether the connection was kept, for each complete reply
        self.cancelled = 0
        self.task: asyncio.Task[None] | None = None
        self.parts: deque[bytes] = deque()  # of the body that is still to come; an empty one ends it
        self.pause_s = 0.0  # before each part
        self.drained = asyncio.Event()
        request = Request(method, "/path", b"", fields or [], is_http_1_0=is_http_1_0, keep_alive=keep_alive)
        body = RequestBody(limits or BodyLimits(), AWAITING_CONTINUE if request.expects_continue else RECEIVING)
        self.exchange = Exchange(self, request, body, request.keep_alive)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self) -> None:
        await self.drained.wait()

    def receive_more(self, exchange: Exchange) -> None:
        assert exchange is self.exchange
        self.asked_for_more += 1
        if self.parts:
            asyncio.get_running_loop().call_later(self.pause_s, self._send_part)

    def _send_part(self) -> None:
        if part := self.parts.popleft():
            self.exchange.body.feed(part)
        else:
            self.exchange.body.end()

    def finish(self, exchange: Exchange, data: bytes) -> None:
        assert exchange is self.exchange
        self.write(data)
        self.completed.append(exchange.keep_alive)

    def cancel(self, exchange: Exchange) -> None:
        assert exchange is self.exchange
        self.cancelled += 1
        if self.task:
            self.task.cancel()

    def claim(self, owner: str) -> bool:
        return bool(owner)

    @property
    def head(self) -> list[bytes]:
        """The status line and the header lines of the reply."""
        return b"".join(self.written).partition(b"\r\n\r\n")[0].split(b"\r\n")

    @property
    def sent_body(self) -> bytes:
        return b"".join(self.written).partition(b"\r\n\r\n")[2]
