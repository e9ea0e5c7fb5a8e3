"""Content that is kept in memory for a few minutes: pages, robots.txt rules, and the results of searches.

Keys are digests, so a query or an address is not kept.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from cadenza.core.bounded_cache import ExpiringCache
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.records import EngineFailed, Hit

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
        self._free = searches_max

    async def search(self, engine: Engine, query: str, count: int) -> list[Hit]:
        """The hits in the cache, or those of a new search."""
        key = f"{engine.name}\0{count}\0{query}"
        hits = self.get(key)
        if hits is None:
            if not self._free:
                raise EngineFailed("crowded")
            self._free -= 1
            try:
                hits = tuple(await engine.search(query, count))
            finally:
                self._free += 1
            self.put(key, hits, ENTRY_BYTES + sum(map(_measure, hits)))
        return list(hits)


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _measure(hit: Hit) -> int:
    return sum(map(sys.getsizeof, (hit, hit.url, hit.title, hit.snippet)))
