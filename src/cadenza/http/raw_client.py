"""Sends bytes as they are, so that a request can be malformed, incomplete, or given up in the middle."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple


class RawReply(NamedTuple):
    """What came back. The status is 0 if nothing did."""

    status: int = 0
    head: bytes = b""
    body: bytes = b""  # with the sizes of chunks, if it came in chunks


def encode_request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A request without any check."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def send_bytes(port: int, data: bytes, within_s: float) -> RawReply:
    """Send these bytes to a port of loopback, and read until it closes. TimeoutError."""
    received = bytearray()
    async with asyncio.timeout(within_s), open_with(port, data) as reader:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                received += part
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d+)", head)
    return RawReply(int(found[1]) if found else 0, head, body)


@asynccontextmanager
async def open_with(port: int, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Send these bytes to a port of loopback. The client disconnects when the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):  # a reply may come before the whole request is read
            await writer.drain()
        yield reader
    finally:
        writer.transport.abort()
