"""Finds the key of every request by its digest. Keys are cached; unknown digests are not.

The cache is cleared with every change of keys, accounts or classes: such a change begins a new epoch in its own
transaction. On SQLite the epoch is read again once another process has committed anything to the file, or this one
anything but charges and the like (`Store.change_mark`). Requests that arrived before this was found out need not read
it. On Postgres a cached key is used only while this process is fresh. So a request that arrives after a change was made
sees it (see decision 17). Look-ups of Postgres that wait at the same time share one query; they join only a query that
has not begun.
"""

import asyncio
import math
import time

from cadenza.core.bounded_cache import BoundedCache
from cadenza.fleet.presence import Presence
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables import epochs, keys
from cadenza.store.tables.keys import FoundKey, FoundKeys

QUERIES_AT_ONCE = 2
WAIT_S = 1.0
KEYS_MAX = 10_000


class KeyCache:
    """The look-ups of one process."""

    def __init__(self, store: Store, presence: Presence, wait_s: float = WAIT_S, keys_max: int = KEYS_MAX) -> None:
        self._store = store
        self._presence = presence
        self._wait_s = wait_s
        self._cached = BoundedCache[bytes, FoundKey](keys_max)  # read under `presence.epoch`, or under `_epoch`
        self._epoch: int | None = None  # of a SQLite store, at `_change_mark` or later
        self._change_mark: object = None
        self._unchanged_s = -math.inf  # when the store last had that mark, by the clock of exchanges
        self._turns = asyncio.Semaphore(QUERIES_AT_ONCE)
        self._next: tuple[set[bytes], asyncio.Task[FoundKeys]] | None = None  # the query that has not begun
        self._queries: set[asyncio.Task[FoundKeys]] = set()
        presence.on_change(self._cached.clear)

    def find_now(self, digest: bytes, arrived_s: float = math.inf) -> FoundKey | None:
        """The key of a request that arrived at `arrived_s`, if it is cached and nothing can have changed it by then.

        None if it must be looked up.
        """
        cached = self._cached.get(digest)
        if cached is None:
            return None
        if self._store.is_shared_by_machines:
            if not self._presence.is_fresh:
                return None
            self._cached.move_to_end(digest)
            return cached
        if self._unchanged_s < arrived_s:
            now_s = time.perf_counter()  # before the mark is read
            if self._change_mark != self._store.change_mark():
                return None
            self._unchanged_s = now_s
        return cached

    def forget(self, digest: bytes) -> None:
        """Read the key again for its next request."""
        self._cached.pop(digest, None)

    async def find(self, digest: bytes) -> FoundKey | None:
        if not self._store.is_shared_by_machines:
            return await self._find_in_file(digest)
        if (cached := self.find_now(digest)) is not None:
            return cached
        digests, query = self._next or self._prepare()
        digests.add(digest)
        return (await asyncio.shield(query)).by_digest.get(digest)

    async def _find_in_file(self, digest: bytes) -> FoundKey | None:
        """The mark is read before the epoch, and the epoch before the key: each is from that moment or a later one."""
        now_s = time.perf_counter()
        mark = self._store.change_mark()
        if mark is None or mark != self._change_mark:
            epoch = await epochs.current(self._store, epochs.CHANGES)
            if epoch != self._epoch:
                self._cached.clear()
                self._epoch = epoch
        if mark is not None:
            self._change_mark, self._unchanged_s = mark, now_s
        if (cached := self._cached.get(digest)) is not None:
            return cached
        known = self._epoch
        key = await keys.look_up(self._store, digest)
        if key and key.revoked_at is None and known == self._epoch:
            self._cached.put(digest, key)
        return key

    def _prepare(self) -> tuple[set[bytes], asyncio.Task[FoundKeys]]:
        digests = set[bytes]()
        query = asyncio.create_task(self._read(digests))
        self._queries.add(query)
        query.add_done_callback(self._forget)
        self._next = digests, query
        return self._next

    def _forget(self, query: asyncio.Task[FoundKeys]) -> None:
        self._queries.discard(query)
        if not query.cancelled():
            query.exception()  # or the event loop would report it, if all that waited for it have left

    async def _read(self, digests: set[bytes]) -> FoundKeys:
        try:
            async with asyncio.timeout(self._wait_s):
                async with self._turns:
                    self._next = None
                    keys_read = await keys.look_up_many(self._store, list(digests))
        except TimeoutError:
            self._next = None  # it may not have begun: no other look-up may join it now
            raise StoreUnavailable("The store did not answer in time.") from None
        self._keep(keys_read)
        return keys_read

    def _keep(self, keys_read: FoundKeys) -> None:
        """Cache what was read under the newest epoch. A revoked key is not: it must take as long as an unknown one."""
        if keys_read.epoch == self._presence.epoch:
            for digest, key in keys_read.by_digest.items():
                if key.revoked_at is None:
                    self._cached.put(digest, key)
