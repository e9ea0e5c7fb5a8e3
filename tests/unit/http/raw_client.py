"""A client of the server that sends any bytes, and reads replies as they stand on the wire."""

import asyncio
import contextlib
from collections.abc import Callable

WAIT_S = 30.0  # for anything that must happen; generous, since the machine may be busy
READ_BYTES = 65_536
BUFFER_BYTES = 4096  # small, so that a client that does not read fills up soon
TURNS = 4  # of the loop, in which the server reads what was sent
LAST_CHUNK = b"0\r\n\r\n"

Reply = tuple[bytes, list[bytes], bytes]


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send all of it, and give the server time to read it. Nothing happens on a connection that was closed."""
        if self._writer.is_closing():
            return
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    async def send_bytewise(self, data: bytes) -> None:
        for byte in data:
            await self.send(bytes([byte]))

    def start_sending(self, data: bytes) -> None:
        """Send it without waiting for the server to read it."""
        self._writer.write(data)

    async def read_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readuntil(end)

    async def read_some(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read(READ_BYTES)

    async def read_to_end(self) -> bytes:
        """Everything that arrives until the server closes the connection, which it must do."""
        received = b""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while part := await self._reader.read(READ_BYTES):
                    received += part
        return received

    async def reply(self) -> Reply:
        """One reply: its status line, its header lines, and its body as it stands on the wire."""
        head = await self.read_until(b"\r\n\r\n")
        status_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        for line in lines:
            if line.startswith(b"content-length:"):
                async with asyncio.timeout(WAIT_S):
                    return status_line, lines, await self._reader.readexactly(int(line.split(b":")[1]))
        if b"transfer-encoding: chunked" not in lines:
            return status_line, lines, b""
        try:
            return status_line, lines, await self.read_until(LAST_CHUNK)
        except asyncio.IncompleteReadError as error:  # the stream was aborted
            return status_line, lines, error.partial

    def abort(self) -> None:
        self._writer.transport.abort()


async def connect_to(address: tuple[str, int]) -> RawClient:
    return RawClient(*await asyncio.open_connection(*address, limit=BUFFER_BYTES))


async def until(holds: Callable[[], bool]) -> None:
    """For a condition that no event tells of."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)  # not longer: the clock of the loop may be stopped


def request(path: str, body: bytes = b"", method: str = "POST", request_id: str = "r-1", more: str = "") -> bytes:
    """`more` are further header lines."""
    fields = f"host: here\r\nx-request-id: {request_id}\r\n{more}"
    return f"{method} {path} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body


def chunks(body: bytes) -> list[bytes]:
    """The chunks of a body, with the empty one at its end."""
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)])
        assert body[int(size, 16) :].startswith(b"\r\n")
        body = body[int(size, 16) + 2 :]
    return found
