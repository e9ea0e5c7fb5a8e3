"""Results of searches, kept in memory for a few minutes, and searches shared by the requests that ask for the same.

The key is a digest of the engine, the count and the query: the query itself is not kept. A search that has begun goes
on if its request is cancelled, because another one may wait for it; the time limit of the engine ends it.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable

import msgspec

from cadenza.grounding.search.engines.base import Engine
from cadenza.grounding.search.records import EngineFailed, Hit

ENTRY_BYTES = 500  # what an entry takes beside its hits, about


class CacheBounds(msgspec.Struct, frozen=True):
    """How much is kept, for how long, and how many searches run at once."""

    entries_max: int = 500
    bytes_max: int = 8 * 1024 * 1024
    age_s_max: float = 300.0
    sweep_s: float = 30.0  # how often old entries are dropped if nobody asks
    searches_max: int = 64


class _Entry(msgspec.Struct, frozen=True):
    hits: tuple[Hit, ...]
    size_bytes: int
    until_s: float


class ResultCache:
    """The results of any number of engines. The clock counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float], bounds: CacheBounds | None = None) -> None:
        self._clock = clock
        self._bounds = bounds or CacheBounds()
        self._entries: dict[bytes, _Entry] = {}  # the oldest first
        self._size_bytes = 0
        self._searches: dict[bytes, asyncio.Task[tuple[Hit, ...]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def search(self, engine: Engine, query: str, count: int) -> list[Hit]:
        """The hits that are kept, those of a search that runs already, or those of a new one."""
        key = _digest(engine.name, query, count)
        self._drop_old()
        if entry := self._entries.get(key):
            return list(entry.hits)
        search = self._searches.get(key) or self._begin(key, engine, query, count)
        try:
            return list(await asyncio.shield(search))
        except asyncio.CancelledError:
            asker = asyncio.current_task()
            if search.cancelled() and asker and not asker.cancelling():
                raise EngineFailed("closed") from None
            raise

    async def close(self) -> None:
        """Forget everything and end the searches that run."""
        if self._sweeping:
            self._sweeping.cancel()
            self._sweeping = None
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        self._entries.clear()
        self._size_bytes = 0

    def _begin(self, key: bytes, engine: Engine, query: str, count: int) -> asyncio.Task[tuple[Hit, ...]]:
        if len(self._searches) >= self._bounds.searches_max:
            raise EngineFailed("crowded")
        search = asyncio.create_task(self._run(key, engine, query, count))
        self._searches[key] = search
        search.add_done_callback(lambda ended: self._end(key, ended))
        return search

    async def _run(self, key: bytes, engine: Engine, query: str, count: int) -> tuple[Hit, ...]:
        hits = tuple(await engine.search(query, count))
        self._keep(key, hits)
        return hits

    def _end(self, key: bytes, search: asyncio.Task[tuple[Hit, ...]]) -> None:
        del self._searches[key]
        if not search.cancelled():
            search.exception()  # so that asyncio does not report it if nobody waits any more

    def _keep(self, key: bytes, hits: tuple[Hit, ...]) -> None:
        bounds = self._bounds
        size_bytes = ENTRY_BYTES + sum(map(_measure, hits))
        if size_bytes > bounds.bytes_max:
            return
        while self._entries and (
            len(self._entries) >= bounds.entries_max or self._size_bytes + size_bytes > bounds.bytes_max
        ):
            self._drop_oldest()
        self._entries[key] = _Entry(hits, size_bytes, self._clock() + bounds.age_s_max)
        self._size_bytes += size_bytes
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(bounds.sweep_s, self._sweep)

    def _sweep(self) -> None:
        self._drop_old()
        again = bool(self._entries)
        self._sweeping = asyncio.get_running_loop().call_later(self._bounds.sweep_s, self._sweep) if again else None

    def _drop_old(self) -> None:
        now_s = self._clock()
        while self._entries and next(iter(self._entries.values())).until_s <= now_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        entry = self._entries.pop(next(iter(self._entries)))
        self._size_bytes -= entry.size_bytes


def _digest(engine_name: str, query: str, count: int) -> bytes:
    return hashlib.sha256(f"{engine_name}\0{count}\0{query}".encode(errors="surrogatepass")).digest()


def _measure(hit: Hit) -> int:
    return sum(map(sys.getsizeof, (hit, hit.url, hit.title, hit.snippet, hit.text)))
