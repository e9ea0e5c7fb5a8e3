"""A TCP link to a server that can fail as networks do: stall without closing, strand connections, be cut, be slow.

It runs in a thread of its own, so that synchronous and asynchronous tests can use it.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

READ_BYTES = 64 * 1024
CONTROL_S = 60.0

Target = Path | tuple[str, int]  # a unix socket, or a host and port


class Link:
    """Forwards connections on 127.0.0.1:`port` to the target. All methods take effect before they return."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0  # for each direction
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._reserved = socket.socket()  # bound without listening: nobody else gets the port while it is cut
        self._carriers = set[Carrier]()
        self._is_stalled = False

    @contextlib.contextmanager
    def running(self) -> Iterator["Link"]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            self.restore()
            try:
                yield self
            finally:
                self.cut()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(CONTROL_S)
            self._loop.close()
            self._reserved.close()

    @property
    def connections(self) -> int:
        return len(self._carriers)

    def stall(self) -> None:
        """Forward nothing, on old and new connections, and close nothing."""

        def stall() -> None:
            self._is_stalled = True
            for carrier in self._carriers:
                carrier.flows.clear()

        self._control(stall)

    def strand(self) -> None:
        """Forward nothing on the connections there are, ever again. New ones work."""

        def strand() -> None:
            for carrier in self._carriers:
                carrier.is_stranded = True
                carrier.flows.clear()

        self._control(strand)

    def resume(self) -> None:
        """End a stall: everything that waited is forwarded."""

        def resume() -> None:
            self._is_stalled = False
            for carrier in self._carriers:
                if not carrier.is_stranded:
                    carrier.flows.set()

        self._control(resume)

    def cut(self) -> None:
        """Close all connections and refuse new ones, until `restore`."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(CONTROL_S)

    def restore(self) -> None:
        """Accept connections again, on the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(CONTROL_S)

    def _control(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CONTROL_S)

    async def _listen(self) -> None:
        if self.port == 0:
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._reserved.bind(("127.0.0.1", 0))
            self.port = self._reserved.getsockname()[1]
        if self._server is None:
            self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        carrying = [carrier.carrying for carrier in self._carriers]
        for task in carrying:
            task.cancel()
        if carrying:
            await asyncio.wait(carrying)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        carrier = Carrier(self, task)
        if self._is_stalled:
            carrier.flows.clear()
        self._carriers.add(carrier)
        try:
            await carrier.carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._carriers.discard(carrier)


class Carrier:
    """One connection through the link."""

    def __init__(self, link: Link, carrying: asyncio.Task[None]) -> None:
        self.carrying = carrying
        self.flows = asyncio.Event()
        self.flows.set()
        self.is_stranded = False
        self._link = link

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._link.target
        connecting = (
            asyncio.open_unix_connection(target) if isinstance(target, Path) else asyncio.open_connection(*target)
        )
        answers, asks = await connecting
        both = [asyncio.create_task(self._forward(reader, asks)), asyncio.create_task(self._forward(answers, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asks.transport.abort()  # at once: this task may be cancelled while it waits for the others
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Deliver each part `delay_s` after it was read, in order, while more is read. Ends with the connection."""
        loop = asyncio.get_running_loop()
        parts = asyncio.Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while True:
                due_s, data = await parts.get()
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
                if not data:
                    return

        delivering = asyncio.create_task(deliver())
        try:
            while data := await reader.read(READ_BYTES):
                parts.put_nowait((loop.time() + self._link.delay_s, data))
            parts.put_nowait((0.0, b""))
            await delivering
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
