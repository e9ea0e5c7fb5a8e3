"""A generator of load: kept connections that cost little, requests at a steady rate or from clients that insist.

A reply that does not come within REPLY_S fails the run: nothing may time out.
"""

import asyncio
import json
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import httptools
import msgspec

REPLY_S = 30.0
PING_S = 0.05
FILES_MAX = 65_536


class Reply(msgspec.Struct, frozen=True):
    """What came back, and how long the whole of it took. `is_whole` where its end came before the connection's."""

    status: int
    headers: dict[str, str]
    body: bytes
    took_s: float
    is_whole: bool

    @property
    def is_served(self) -> bool:
        is_stream = self.headers.get("content-type", "").startswith("text/event-stream")
        return self.status == 200 and self.is_whole and (not is_stream or self.body.endswith(b"data: [DONE]\n\n"))


class Line(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.is_usable = True
        self._answer: asyncio.Future[Reply] | None = None
        self._has_data = asyncio.Event()

    async def ask(self, request: bytes) -> Reply:
        async with asyncio.timeout(REPLY_S):
            return await self.begin(request)

    def begin(self, request: bytes) -> asyncio.Future[Reply]:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._has_data.clear()
        self._asked_s = time.perf_counter()
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    async def wait_for_data(self) -> None:
        """Until the first bytes of an answer have come, or none will come."""
        async with asyncio.timeout(REPLY_S):
            await self._has_data.wait()

    def leave(self) -> None:
        self.is_usable = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_usable = False
        self._has_data.set()
        self._finish(is_whole=False)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._has_data.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self.is_usable = self._parser.should_keep_alive()
        self._finish(is_whole=True)

    def _finish(self, *, is_whole: bool) -> None:
        if self._answer and not self._answer.done():
            status = self._parser.get_status_code() if self._headers else 0
            took_s = time.perf_counter() - self._asked_s
            self._answer.set_result(Reply(status, self._headers, b"".join(self._body), took_s, is_whole))


class Lines:
    """The connections to one service; those that are idle are used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Line] = []

    async def take(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if line.is_usable:
                return line
        return (await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", self._port))[1]

    async def ask(self, request: bytes) -> Reply:
        line = await self.take()
        reply = await line.ask(request)
        if line.is_usable:
            self._idle.append(line)
        return reply

    async def offer(self, requests: Sequence[bytes], per_s: float, seconds: float) -> list[Reply]:
        """So many a second whatever becomes of them, at random instants, by turns."""
        dice, clock = random.Random(1), asyncio.get_running_loop().time
        at_s = began_s = clock()
        replies = list[asyncio.Task[Reply]]()
        while at_s < began_s + seconds:
            at_s += dice.expovariate(per_s)
            await asyncio.sleep(max(0.0, at_s - clock()))
            replies.append(asyncio.create_task(self.ask(requests[len(replies) % len(requests)])))
        return await asyncio.gather(*replies)

    async def insist(self, request: bytes, clients: int, seconds: float, refused_s: float) -> list[Reply]:
        """Each client sends its next request when it has its reply, and after a refusal a little later."""
        dice, clock = random.Random(2), asyncio.get_running_loop().time
        until_s, replies = clock() + seconds, list[Reply]()

        async def client() -> None:
            while clock() < until_s:
                replies.append(await self.ask(request))
                if replies[-1].status != 200:
                    await asyncio.sleep(refused_s * dice.uniform(0.5, 1.5))

        await asyncio.gather(*(client() for _ in range(clients)))
        return replies

    def close(self) -> None:
        for line in self._idle:
            line.leave()
        self._idle.clear()


@asynccontextmanager
async def pinged(port: int, path: str) -> AsyncIterator[list[Reply]]:
    """What a process that has hardly anything to do answers meanwhile: how slow the machine itself is just now."""
    line, replies = await Lines(port).take(), list[Reply]()

    async def ping() -> None:
        while True:
            replies.append(await line.ask(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()))
            await asyncio.sleep(PING_S)

    pinging = asyncio.create_task(ping())
    try:
        yield replies
    finally:
        pinging.cancel()
        line.leave()


class Figures(msgspec.Struct, frozen=True):
    """How long replies took, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> "Figures":
        times_ms = sorted(reply.took_s * 1000 for reply in replies)
        assert times_ms, "not one reply of this kind"
        return cls(len(times_ms), statistics.median(times_ms), times_ms[len(times_ms) * 99 // 100], times_ms[-1])

    def __str__(self) -> str:
        return f"{self.count} replies, p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, max {self.max_ms:.1f} ms"


def chat_request(key: str, *, stream: bool = False, content: str = "Say it.") -> bytes:
    """The bytes of one request on a connection that is kept."""
    body = json.dumps({"model": "forte", "stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    )


def allow_many_files() -> None:
    """A thousand streams have a thousand connections, and more of them on the other side."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
