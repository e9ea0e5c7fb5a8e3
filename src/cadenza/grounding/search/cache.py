"""Content that is kept in memory for a few minutes: pages, robots.txt rules, and the results of searches.

Keys are digests, so a query or an address is not kept. Requests for the same search share one. A search that has begun
goes on if its request is cancelled, because another one may wait for it; the time limit of the engine ends it.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from cadenza.core.bounded_cache import ExpiringCache
from cadenza.grounding.search.engines.base import Engine
from cadenza.grounding.search.records import EngineFailed, Hit

V = TypeVar("V")

ENTRY_BYTES = 500  # of an entry, beside its hits, about
SEARCHES_MAX = 64  # at once


class CacheBounds(msgspec.Struct, frozen=True):
    """How much is kept, and for how long."""

    age_s_max: float
    entries_max: int
    bytes_max: int
    sweep_s: float = 30.0  # how often a timer drops what has expired, so that it does not stay until the next request

    def for_age(self, age_s_max: float) -> "CacheBounds":
        """The same with another age; 0: nothing is kept."""
        return msgspec.structs.replace(self, age_s_max=age_s_max, entries_max=self.entries_max if age_s_max else 0)


RESULT_BOUNDS = CacheBounds(300.0, 500, 8 * 1024 * 1024)


class ContentCache(Generic[V]):
    """Values by the digests of their keys. The clock counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float], bounds: CacheBounds) -> None:
        self._entries = ExpiringCache[bytes, V](clock, bounds.entries_max, bounds.bytes_max, bounds.age_s_max)
        self._sweep_s = bounds.sweep_s
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def get(self, key: str) -> V | None:
        return self._entries.get(digest(key))

    def put(self, key: str, value: V, size_bytes: int) -> None:
        self._entries.put(digest(key), value, size_bytes)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)

    def clear(self) -> None:
        self._entries.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        has_more = self._entries.drop_expired() is not None
        self._timer = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep) if has_more else None


class ResultCache(ContentCache[tuple[Hit, ...]]):
    """The results of any number of engines."""

    def __init__(
        self, clock: Callable[[], float], bounds: CacheBounds = RESULT_BOUNDS, searches_max: int = SEARCHES_MAX
    ) -> None:
        super().__init__(clock, bounds)
        self._searches_max = searches_max
        self._searches: dict[bytes, asyncio.Task[tuple[Hit, ...]]] = {}

    async def search(self, engine: Engine, query: str, count: int) -> list[Hit]:
        """The hits in the cache, those of a search that runs already, or those of a new one."""
        key = f"{engine.name}\0{count}\0{query}"
        hits = self.get(key)
        if hits is not None:
            return list(hits)
        search = self._searches.get(digest(key)) or self._begin(key, engine, query, count)
        try:
            return list(await asyncio.shield(search))
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if search.cancelled() and waiting and not waiting.cancelling():
                raise EngineFailed("closed") from None
            raise

    async def close(self) -> None:
        """Drop everything, and end the searches that run."""
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        self.clear()

    def _begin(self, key: str, engine: Engine, query: str, count: int) -> asyncio.Task[tuple[Hit, ...]]:
        if len(self._searches) >= self._searches_max:
            raise EngineFailed("crowded")

        async def run() -> tuple[Hit, ...]:
            hits = tuple(await engine.search(query, count))
            self.put(key, hits, ENTRY_BYTES + sum(map(_measure, hits)))
            return hits

        def end(ended: asyncio.Task[tuple[Hit, ...]]) -> None:
            del self._searches[digest(key)]
            if not ended.cancelled():
                ended.exception()  # so that asyncio does not report it if no request waits for it

        search = self._searches[digest(key)] = asyncio.create_task(run())
        search.add_done_callback(end)
        return search


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _measure(hit: Hit) -> int:
    return sum(map(sys.getsizeof, (hit, hit.url, hit.title, hit.snippet, hit.text)))
