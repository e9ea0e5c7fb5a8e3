"""A load generator: kept connections that cost little, and requests at a steady rate or from impatient clients.

A reply that does not arrive within REPLY_S fails the run.
"""

import asyncio
import dataclasses
import json
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import httptools
import msgspec

from tests.raw_client import Reply

REPLY_S = 100.0
PING_S = 0.05
FILES_MAX = 65_536


@dataclasses.dataclass(frozen=True)
class TimedReply(Reply):
    """A reply, and how long it took until its last byte."""

    took_s: float


class Connection(asyncio.Protocol):
    """One kept connection, which carries one request at a time."""

    def __init__(self) -> None:
        self.is_usable = True
        self._answer: asyncio.Future[TimedReply] | None = None
        self._has_data = asyncio.Event()

    async def ask(self, request: bytes) -> TimedReply:
        async with asyncio.timeout(REPLY_S):
            return await self.begin(request)

    def begin(self, request: bytes) -> asyncio.Future[TimedReply]:
        self._parser = httptools.HttpResponseParser(self)
        self._read: list[bytes] = []
        self._has_data.clear()
        self._asked_s = time.perf_counter()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    async def wait_for_data(self) -> None:
        """Wait until the first bytes of an answer have arrived or the connection is lost."""
        async with asyncio.timeout(REPLY_S):
            await self._has_data.wait()

    def close(self) -> None:
        self.is_usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_usable = False
        self._has_data.set()
        self._finish()

    def data_received(self, data: bytes) -> None:
        self._read.append(data)
        self._has_data.set()
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.is_usable = self._parser.should_keep_alive()
        self._finish()

    def _finish(self) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(TimedReply(b"".join(self._read), time.perf_counter() - self._asked_s))


class ConnectionPool:
    """The connections to one service; idle ones are used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []
        self._opened: list[Connection] = []

    async def take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        self._opened.append(connection)
        return connection

    async def ask(self, request: bytes) -> TimedReply:
        connection = await self.take()
        reply = await connection.ask(request)
        if connection.is_usable:
            self._idle.append(connection)
        return reply

    async def send_repeatedly(
        self, request: bytes, clients: int, is_enough: Callable[[int], bool], refused_s: float
    ) -> list[TimedReply]:
        """Each client sends its next request when it has its reply, and after a refusal a little later.

        `is_enough` is asked with the number of requests that were served so far.
        """
        dice, replies, served = random.Random(2), list[TimedReply](), 0

        async def client() -> None:
            nonlocal served
            while not is_enough(served):
                reply = await self.ask(request)
                replies.append(reply)
                if reply.status == 200:
                    served += 1
                else:
                    await asyncio.sleep(refused_s * dice.uniform(0.5, 1.5))

        await asyncio.gather(*(client() for _ in range(clients)))
        return replies

    def close(self) -> None:
        for connection in self._opened:
            connection.close()
        self._idle.clear()


@asynccontextmanager
async def pinged(port: int, path: str) -> AsyncIterator[list[TimedReply]]:
    """Replies of a nearly idle process during the block: they show how slow the machine is at this moment."""
    connection, replies = await ConnectionPool(port).take(), list[TimedReply]()

    async def ping() -> None:
        while True:
            replies.append(await connection.ask(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()))
            await asyncio.sleep(PING_S)

    pinging = asyncio.create_task(ping())
    try:
        yield replies
    finally:
        pinging.cancel()
        connection.close()


class Latency(msgspec.Struct, frozen=True):
    """How long replies took, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, replies: Sequence[TimedReply]) -> "Latency":
        times_ms = sorted(reply.took_s * 1000 for reply in replies)
        assert times_ms, "not one reply of this kind"
        return cls(len(times_ms), statistics.median(times_ms), times_ms[len(times_ms) * 99 // 100], times_ms[-1])

    def __str__(self) -> str:
        return f"{self.count} replies, p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, max {self.max_ms:.1f} ms"


def chat_request(key: str, *, stream: bool = False, content: str = "Say it.") -> bytes:
    """The bytes of one request on a kept connection, which is shared like that of a proxy: nobody is held back."""
    body = json.dumps({"model": "forte", "stream": stream, "messages": [{"role": "user", "content": content}]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\n"
        b"x-forwarded-for: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    )


def allow_many_files() -> None:
    """Raise the limit of open files: every stream has a connection on either side of the service."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
