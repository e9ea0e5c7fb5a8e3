"""Writes which requests to providers have no metering row (core/attempts.py), each minute and at the stop."""

import asyncio
from contextlib import suppress

from cadenza.observe import Observer
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.tables import attempts

WRITE_EVERY_S = 60.0


class AttemptLog:
    """A store that does not answer delays what was counted; it loses none."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
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
        counted = self._observer.attempts.take()
        try:
            await attempts.add(self._store, counted)
        except (StoreUnavailable, StoreRefused):
            self._observer.log.warning("cannot write attempts at providers; will try again")
            self._observer.attempts.put_back(counted)
