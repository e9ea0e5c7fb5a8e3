"""A proxy before Postgres that can lose an answer: a COMMIT was carried out, and the client never learns it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.postgres import Postgres

SOCKET = ".s.PGSQL.5432"
READ_BYTES = 64 * 1024


class LossyLine:
    """A unix socket in front of the server's own."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.folder = folder
        self.lost = asyncio.Event()
        self._target = server.folder
        self._word: bytes | None = None

    def lose_next_commit(self) -> None:
        self.lose_next(b"COMMIT")

    def lose_next(self, word: bytes) -> None:
        """Lose the connection instead of the answer to the next statement with this word."""
        self._word = word

    def url_of(self, url: str) -> str:
        return url.replace(str(self._target), str(self.folder))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_unix_connection(str(self._target / SOCKET))
        cut = asyncio.Event()
        both = [
            asyncio.create_task(self._ask(reader, asks, cut)),
            asyncio.create_task(self._answer(answers, writer, cut)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.wait(both)
        writer.close()
        asks.close()

    async def _ask(self, reader: asyncio.StreamReader, asks: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while asked := await reader.read(READ_BYTES):
            if self._word and self._word in asked:
                self._word = None
                cut.set()
            asks.write(asked)

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while said := await answers.read(READ_BYTES):
            if cut.is_set():
                self.lost.set()
                return
            writer.write(said)


@asynccontextmanager
async def lossy_line(server: Postgres, folder: Path) -> AsyncIterator[LossyLine]:
    line = LossyLine(server, folder)
    async with await asyncio.start_unix_server(line.carry, folder / SOCKET):
        yield line
