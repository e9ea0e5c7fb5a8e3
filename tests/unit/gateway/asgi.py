"""The other side of a call: an ASGI client that says what a test has it say and keeps what it is sent."""

import asyncio
from collections.abc import Callable

from cadenza.gateway.call import HANG_UP, Call, Message, Scope

WAIT_S = 10.0
Headers = list[tuple[bytes, bytes]]


class Client:
    """Its parts of the body and its leaving are queued; it takes whatever is sent, unless it is told to stall."""

    def __init__(self) -> None:
        self.reads = 0
        self.sent: list[Message] = []
        self.hung_up_after: int | None = None  # how many messages had been sent when the server was told to hang up
        self.stalls_at: Callable[[Message], bool] = lambda _: False
        self.takes_more = asyncio.Event()  # a send that stalls waits for it
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._sent_more = asyncio.Event()

    def call(self, headers: Headers | None = None, body_s: float = 20.0) -> Call:
        return Call(self.scope(headers), self.receive, self.send, body_s)

    def scope(
        self,
        headers: Headers | None = None,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        query: bytes = b"",
    ) -> Scope:
        return {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers or [],
            "extensions": {HANG_UP: self._hang_up},
        }

    def say(self, body: bytes, *, more: bool = False) -> None:
        self._said.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._said.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Message:
        self.reads += 1
        return await self._said.get()

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self._sent_more.set()
        if self.stalls_at(message):
            await self.takes_more.wait()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    def _hang_up(self) -> None:
        self.hung_up_after = len(self.sent)

    async def sent_body(self, wanted: bytes, times: int = 1) -> None:
        """Returns once so many bodies that hold these bytes were sent."""
        async with asyncio.timeout(WAIT_S):
            while sum(wanted in body for body in self.bodies) < times:
                self._sent_more.clear()
                await self._sent_more.wait()


async def let_tasks_run() -> None:
    """Give every task that can go on its turn, a few times over."""
    for _ in range(5):
        await asyncio.sleep(0)
