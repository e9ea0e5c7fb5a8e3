"""Announcements between processes on Postgres: LISTEN on a connection of its own.

The connection is tested every second, because one that was lost silently would miss announcements. When it is lost it
is made again, and `wake` is called, because announcements may have been missed meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from cadenza.store.postgres.connect import Connection
from cadenza.store.postgres.errors import CONNECT_ERRORS
from cadenza.store.store import StoreUnavailable

CHANNEL = "cadenza"
ANNOUNCE = f"NOTIFY {CHANNEL}"
TEST_EVERY_S = 1.0
TEST_S = 1.0
RECONNECT_PAUSE_S = 0.25
Listen = Callable[[Connection], Awaitable[None]]
Connect = Callable[[Listen], Awaitable[Connection]]


@contextlib.asynccontextmanager
async def watch(connect: Connect, wake: Callable[[], None]) -> AsyncIterator[None]:
    """`connect` returns a connection that listens, or raises StoreUnavailable.

    The caller gets the error of the first time; later it is tried again.
    """
    listener = Listener(connect, wake)
    await listener.connect()
    keeping = asyncio.create_task(listener.keep_connected())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        listener.disconnect()


class Listener:
    """The connection that listens."""

    def __init__(self, connect: Connect, wake: Callable[[], None]) -> None:
        self._connect = connect
        self._wake = wake
        self._connection: Connection | None = None
        self._lost = asyncio.Event()

    async def connect(self) -> None:
        self._connection = await self._connect(self._listen)

    async def _listen(self, connection: Connection) -> None:
        self._lost.clear()
        connection.add_termination_listener(lambda _: self._lost.set())
        await connection.add_listener(CHANNEL, lambda *_: self._wake())

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def keep_connected(self) -> None:
        while True:
            await self._wait_until_lost()
            self.disconnect()
            await self._connect_again()
            self._wake()

    async def _wait_until_lost(self) -> None:
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), TEST_EVERY_S)
                return
            try:
                async with asyncio.timeout(TEST_S):
                    assert self._connection
                    await self._connection.execute("SELECT 1")
            except CONNECT_ERRORS:
                return

    async def _connect_again(self) -> None:
        while True:
            try:
                await self.connect()
            except (StoreUnavailable, *CONNECT_ERRORS):
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return
