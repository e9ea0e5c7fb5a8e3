"""Writes the details of requests that were not plain (observe/details.py), each second and at the stop.

Stance on failure: a store that does not answer delays them. What does not fit into memory until then is lost, and what
the store refuses.
"""

import time
from contextlib import suppress

from cadenza import clock
from cadenza.observe import Observer
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.tables import request_details

REMOVE_EVERY_S = 60.0


class DetailLog:
    """Writes them, and removes old ones."""

    every_s = 1.0

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._remove_at_s = time.monotonic()

    async def write(self) -> None:
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
                now_ms = clock.now_ms()
                while await self._store.transact(lambda tx: request_details.remove_old(tx, now_ms)):
                    pass
