"""The benchmark's client: raw HTTP/1.1 on asyncio that records when each chunk of a reply arrives.

A reply is good only if its status is 200, all of its marks arrived and, for a stream, it ended with the terminator.
Anything else is an error with a reason. Connections are kept alive and reused.
"""

import asyncio
import time
from typing import cast

import msgspec

from bench.workload import CHAT, Protocol, Shape

TAIL_BYTES = 32
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Reply(msgspec.Struct):
    """A reply and its timing, in seconds since the request was written."""

    status: int
    marks_s: list[float]
    took_s: float
    has_terminator: bool

    def fault(self, shape: Shape) -> str | None:
        if self.status != 200:
            return f"status {self.status}"
        if len(self.marks_s) != shape.marks:
            return f"{len(self.marks_s)} of {shape.marks} chunks"
        return "no terminator" if shape.chunks and not self.has_terminator else None


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    @classmethod
    async def open(cls, port: int, protocol: Protocol = CHAT) -> "Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(protocol), "127.0.0.1", port)
        return connection

    def __init__(self, protocol: Protocol = CHAT) -> None:
        self.is_open = True
        self._mark, self._end = protocol.mark, protocol.end
        self._pending: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self.is_open = False
        if self._pending and not self._pending.done():
            if self._has_head and self._until_close:
                self._finish()
            else:
                self._pending.set_exception(ConnectionResetError("connection closed"))

    def send(self, request: bytes, marks_max: int | None = None) -> "asyncio.Future[Reply]":
        """The client leaves after `marks_max`: the reply ends there, and the connection is closed."""
        self._marks_max = marks_max
        self._pending = asyncio.get_running_loop().create_future()
        self._has_head = self._until_close = self._is_chunked = self._has_terminator = False
        self._status = self._missing_bytes = 0
        self._tail = b""
        self._marks_s: list[float] = []
        self._began_s = time.perf_counter()
        self._transport.write(request)
        return self._pending

    @property
    def marks_s(self) -> list[float]:
        """Arrival times of the marks of the current reply."""
        return self._marks_s

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter() - self._began_s
        if not self._has_head:
            body = self._take_head(self._tail + data)
            if body is None:
                self._tail += data
                return
            self._tail, data = b"", body
        seen = self._tail + data
        if marks := seen.count(self._mark) - self._tail.count(self._mark):
            self._marks_s.extend([now_s] * marks)
        self._has_terminator = self._has_terminator or self._end in seen
        self._missing_bytes -= len(data)
        self._tail = seen[-TAIL_BYTES:]
        if self._marks_max and len(self._marks_s) >= self._marks_max:
            self._finish()
            self.close()
        elif not self._until_close and (seen.endswith(LAST_CHUNK) if self._is_chunked else self._missing_bytes <= 0):
            self._finish()

    def _take_head(self, data: bytes) -> bytes | None:
        """Parse the head. Returns the start of the body, or None if the head is incomplete."""
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            return None
        self._has_head = True
        self._status = int(head[9:12])
        head = head.lower()
        _, has_length, length = head.partition(b"\r\ncontent-length:")
        self._is_chunked = b"\r\ntransfer-encoding: chunked" in head
        self._missing_bytes = int(length.partition(b"\r\n")[0]) if has_length else 0
        self._until_close = not has_length and not self._is_chunked
        return b"\r\n" + rest if self._is_chunked else rest

    def _finish(self) -> None:
        pending, self._pending = self._pending, None
        if pending and not pending.done():
            took_s = time.perf_counter() - self._began_s
            pending.set_result(Reply(self._status, self._marks_s, took_s, self._has_terminator))
