"""Writes the details of requests that were not plain (observe/details.py), each second and at the stop.

Stance on failure: a store that does not answer delays them. What does not fit into memory until then is lost, and what
the store refuses.
"""

import asyncio
import time
from contextlib import suppress

from cadenza.observe import Observer
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.tables import request_details

WRITE_EVERY_S = 1.0
REMOVE_EVERY_S = 60.0


class DetailLog:
    """The task that writes them, and removes old ones."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._remove_at_s = time.monotonic()

    async def run(self) -> None:
        """Until it is cancelled; then what waits is written."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        taken = self._observer.details.take()
        try:
            await request_details.add(self._store, taken)
        except StoreUnavailable:
            self._observer.details.put_back(taken)
            return
        except StoreRefused as error:  # it would refuse them again, and all later ones with them
            self._observer.log.warning("details of requests were not written", reason=str(error))
        if time.monotonic() >= self._remove_at_s:
            self._remove_at_s = time.monotonic() + REMOVE_EVERY_S
            with suppress(StoreUnavailable, StoreRefused):
                now_ms = time.time_ns() // 1_000_000
                await self._store.transact(lambda tx: request_details.remove_old(tx, now_ms), is_brief=True)
