"""Finds keys by their digest, for every request. On Postgres, look-ups that wait at the same time share one query.

A look-up joins only a query that has not begun, so it sees every change that was committed before it was asked for.
"""

import asyncio

from cadenza.store import keys
from cadenza.store.keys import FoundKey
from cadenza.store.store import Store, StoreUnavailable

QUERIES_AT_ONCE = 2
WAIT_S = 1.0

Found = dict[bytes, FoundKey]


class LookUps:
    """The look-ups of one process. SQLite answers each in microseconds, without waiting."""

    def __init__(self, store: Store, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._wait_s = wait_s
        self._turns = asyncio.Semaphore(QUERIES_AT_ONCE)
        self._next: tuple[set[bytes], asyncio.Task[Found]] | None = None  # the query that has not begun
        self._queries: set[asyncio.Task[Found]] = set()

    async def find(self, digest: bytes) -> FoundKey | None:
        if self._store.is_sqlite:
            return await keys.look_up(self._store, digest)
        digests, query = self._next or self._prepare()
        digests.add(digest)
        return (await asyncio.shield(query)).get(digest)

    def _prepare(self) -> tuple[set[bytes], asyncio.Task[Found]]:
        digests = set[bytes]()
        query = asyncio.create_task(self._read(digests))
        self._queries.add(query)
        query.add_done_callback(self._queries.discard)
        self._next = digests, query
        return self._next

    async def _read(self, digests: set[bytes]) -> Found:
        try:
            async with asyncio.timeout(self._wait_s):
                async with self._turns:
                    self._next = None
                    return await keys.look_up_many(self._store, list(digests))
        except TimeoutError:
            self._next = None  # it may not have begun: nobody may join it now
            raise StoreUnavailable("The store did not answer in time.") from None
