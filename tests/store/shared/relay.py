"""A Unix socket in front of Valkey whose traffic the test can hold back or cut, as a network does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Relay:
    """Copies bytes both ways. While it is blocked, nothing passes, and nothing is closed."""

    def __init__(self, target: Path, path: Path) -> None:
        self.url = f"unix://{path}"
        self.delay_s = 0.0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def block(self) -> None:
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers += (writer, back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._open.wait()
                await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def running_relay(target: Path, path: Path) -> AsyncIterator[Relay]:
    relay = Relay(target, path)
    server = await asyncio.start_unix_server(relay.serve, path)
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
