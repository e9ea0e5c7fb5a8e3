"""What requests leave in memory, and is written to the store later, many at once, and at the stop.

Stance on failure: a store that does not answer delays it. Only details that do not fit into memory until then, or that
the store refuses, are lost.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from cadenza import clock
from cadenza.observe import Log, Observer
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.tables import attempts, keys, request_details

REMOVE_EVERY_S = 60.0
AGAIN_MS = 30_000  # the last use of a key is written again after this time: each costs a page of the table


class KeyUse:
    """When each key was last used."""

    every_s = 1.0

    def __init__(self, store: Store, log: Log, now_ms: Callable[[], int] = clock.now_ms) -> None:
        self._store = store
        self._log = log
        self._now_ms = now_ms
        self._used_ms: dict[str, int] = {}
        self._written_ms: dict[str, int] = {}  # when the last use was written, of keys of the last AGAIN_MS

    def note(self, key_id: str) -> None:
        self._used_ms[key_id] = self._now_ms()

    async def write(self, *, is_last: bool = False) -> None:
        now_ms, written_ms = self._now_ms(), self._written_ms
        since_ms = now_ms if is_last else now_ms - AGAIN_MS
        used_ms = {key: used for key, used in self._used_ms.items() if written_ms.get(key, 0) <= since_ms}
        if not used_ms:
            return
        try:
            await keys.touch(self._store, used_ms)
        except StoreUnavailable:
            self._log.repeated("cannot write when keys were last used; will try again")
            return
        self._used_ms = {key: used for key, used in self._used_ms.items() if used_ms.get(key) != used}
        kept_ms = {key: written for key, written in written_ms.items() if written > since_ms}
        self._written_ms = kept_ms | dict.fromkeys(used_ms, now_ms)


class AttemptLog:
    """Which requests to providers have no metering row (core/attempts.py)."""

    every_s = 60.0

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer

    async def write(self) -> None:
        counted = self._observer.attempts.take()
        try:
            await attempts.add(self._store, counted)
        except (StoreUnavailable, StoreRefused):
            self._observer.log.warning("cannot write attempts at providers; will try again")
            self._observer.attempts.requeue(counted)


class DetailLog:
    """The details of requests that were not plain (observe/details.py). It also removes old ones."""

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
            self._observer.details.requeue(taken)
            return
        except StoreRefused as error:  # it would refuse them again, and all later ones with them
            self._observer.log.warning("details of requests were not written", reason=str(error))
        if time.monotonic() >= self._remove_at_s:
            self._remove_at_s = time.monotonic() + REMOVE_EVERY_S
            with suppress(StoreUnavailable, StoreRefused):
                now_ms = clock.now_ms()
                while await self._store.transact(lambda tx: request_details.remove_old(tx, now_ms)):
                    pass
