"""Caches whose memory is bounded. When one is full, the least recently used entry is dropped first.

`BoundedCache` is bounded by its number of entries. It is a dict: reading costs what a dict costs, and only `put` and
`move_to_end` count as a use. `ExpiringCache` is bounded by entries, bytes and age, and its `get` counts as a use. It
has no timer: its owner calls `drop_expired` when the next entry expires, so that nothing stays because nobody asks.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """At most `entries_max` entries, the least recently used first."""

    def __init__(self, entries_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._entries_max:
            self.popitem(last=False)


class ExpiringCache(Generic[K, V]):
    """Entries with a size, for a limited time. The clock counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float], entries_max: int, bytes_max: int, age_s_max: float) -> None:
        self.size_bytes = 0
        self._clock = clock
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._entries: OrderedDict[K, tuple[V, int, float]] = OrderedDict()  # value, size, when it expires

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None or entry[2] <= self._clock():
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Add or replace an entry. One that is larger than the whole cache is not kept."""
        self._drop(key)
        if size_bytes > self._bytes_max:
            return
        self._entries[key] = value, size_bytes, self._clock() + self._age_s_max
        self.size_bytes += size_bytes
        while len(self._entries) > self._entries_max or self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def drop_expired(self) -> float | None:
        """Drop what has expired. Return when the next entry expires; None if there is none."""
        now_s = self._clock()
        for key in [key for key, (_, _, until_s) in self._entries.items() if until_s <= now_s]:
            self._drop(key)
        return min((until_s for _, _, until_s in self._entries.values()), default=None)

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0

    def _drop(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self.size_bytes -= entry[1]
