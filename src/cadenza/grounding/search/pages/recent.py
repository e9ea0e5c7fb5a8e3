"""Values kept in memory for minutes, bounded in number and bytes. The least recently used is dropped first."""

import asyncio
from collections import OrderedDict
from hashlib import sha256
from typing import Generic, TypeVar

from cadenza.grounding.search.pages.limits import Kept

V = TypeVar("V")


class Recent(Generic[V]):
    """Keys are kept as digests. A timer drops what is too old, so that nothing stays because nobody asks."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._entries: OrderedDict[bytes, tuple[V, int, float]] = OrderedDict()  # value, bytes, until when
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def get(self, key: str) -> V | None:
        digest = _digest(key)
        entry = self._entries.get(digest)
        if entry is None or entry[2] <= self._loop.time():
            return None
        self._entries.move_to_end(digest)
        return entry[0]

    def put(self, key: str, value: V, size_bytes: int) -> None:
        digest = _digest(key)
        self._drop(digest)
        self._entries[digest] = (value, size_bytes, self._loop.time() + self._kept.seconds)
        self._bytes += size_bytes
        while len(self._entries) > self._kept.entries or self._bytes > self._kept.bytes:
            self._drop(next(iter(self._entries)))
        self._set_timer()

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _drop(self, digest: bytes) -> None:
        if entry := self._entries.pop(digest, None):
            self._bytes -= entry[1]

    def _set_timer(self) -> None:
        if self._timer is None and self._entries:
            earliest_s = min(until_s for _, _, until_s in self._entries.values())
            self._timer = self._loop.call_at(earliest_s, self._drop_old)

    def _drop_old(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for digest in [digest for digest, entry in self._entries.items() if entry[2] <= now_s]:
            self._drop(digest)
        self._set_timer()


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
