"""A TCP link between a process and a server, which a test can delay, stall, cut and point at another server.

It runs on an event loop in a thread of its own. A stalled link closes nothing: bytes and new connections wait in it.
A cut link closes its connections and refuses new ones.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self

WAIT_S = 60.0
READ_BYTES = 65_536


class Link:
    """`with Link(port) as link` forwards from `link.port` to the port until the block ends."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._flows = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._flows.set()
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.resume()
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def delay(self, seconds: float) -> None:
        """Every piece of data is forwarded this much later, in both directions."""
        self._delay_s = seconds

    def stall(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        self._run(self._cut())

    def mend(self) -> None:
        """Accept connections again, on the same port."""
        self._run(self._listen())

    def point_at(self, target_port: int) -> None:
        """New connections go to another server; those that are open stay where they are."""
        self._target_port = target_port

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        if self._server:
            self._server.close()
        self._server = None
        for writer in self._writers:
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110 each ends within one turn of the loop
            await asyncio.sleep(0.001)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = {writer}
        self._writers.add(writer)
        try:
            await self._flows.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            opened.add(far_writer)
            self._writers.add(far_writer)
            copying = [
                asyncio.ensure_future(self._copy(reader, far_writer)),
                asyncio.ensure_future(self._copy(far_reader, writer)),
            ]
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
            for one in copying:
                one.cancel()
        except OSError:  # the server refuses connections
            pass
        finally:
            self._writers -= opened
            for each in opened:
                each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
