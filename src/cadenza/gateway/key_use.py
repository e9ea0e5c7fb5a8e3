"""When each key was last used: noted in memory by each request, written to the store every second, many at once."""

import asyncio
import time
from contextlib import suppress

from cadenza.observe import Log
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables import keys

WRITE_EVERY_S = 1.0


class KeyUse:
    """The uses that are not written yet. A store that does not answer delays them; it loses none."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._used_ms: dict[str, int] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, key_id: str) -> None:
        self._used_ms[key_id] = time.time_ns() // 1_000_000

    async def start(self) -> None:
        self._writing = asyncio.create_task(self._write_forever())

    async def stop(self) -> None:
        if self._writing:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self._write()

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self._write()

    async def _write(self) -> None:
        used_ms, self._used_ms = self._used_ms, {}
        if not used_ms:
            return
        try:
            await keys.touch(self._store, used_ms)
        except StoreUnavailable:
            self._log.warning("cannot write when keys were last used; will try again")
            self._used_ms = used_ms | self._used_ms
