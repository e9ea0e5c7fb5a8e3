"""A transport in memory, for a protocol of asyncio: what it writes is kept, and what it is fed comes in pieces."""

import asyncio
import random

TURNS_MAX = 500
QUIET_TURNS = 4  # of the loop, in which nothing happens, mean that nothing will


class MemoryWire(asyncio.Transport):
    """One connection, seen from its protocol."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_ended = False  # the protocol sends no more
        self._protocol = protocol
        self._is_closing = False
        self._is_reading = True
        protocol.connection_made(self)

    async def feed(self, pieces: list[bytes]) -> None:
        """Hand over the pieces as the protocol reads them, and return once nothing happens any more."""
        for piece in pieces:
            for _ in range(TURNS_MAX):
                if self._is_reading or self._is_closing:
                    break
                await asyncio.sleep(0)
            if self._is_closing:
                return
            self._protocol.data_received(piece)
            await asyncio.sleep(0)
        await self._until_quiet()

    def lose(self) -> None:
        """The other end closes the connection."""
        if not self._is_closing:
            self.abort()

    async def _until_quiet(self) -> None:
        quiet, size = 0, len(self.written)
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.written) == size else 0
            size = len(self.written)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_ended
        self.written += data

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_ended = True
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0


def split(data: bytes, chance: random.Random) -> list[bytes]:
    """The data in a few pieces, which begin and end anywhere."""
    cuts = sorted({chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 5)))})
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]
