"""Several processes' look-ups over one Postgres store, in one test: each has a store and a presence of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from cadenza.fleet.key_cache import KEYS_MAX, KeyCache
from cadenza.fleet.presence import HeartbeatBounds, Presence
from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, T, Transaction
from tests.store.moves import PATIENCE_S

HOUR_S = 3600.0
PATIENT = HeartbeatBounds(fresh_s=HOUR_S)  # a command that returns at all has heard from every process


class CountingPostgres(PostgresStore):
    """Counts what it sends. It can be deaf to announcements, and its transactions can stall."""

    def __init__(self, url: str, *, is_deaf: bool = False) -> None:
        super().__init__(url, PostgresBounds().with_waits_of(PATIENCE_S))
        self.sent = 0
        self.queries = 0  # of many rows: the look-ups
        self.is_deaf = is_deaf
        self.may_change = asyncio.Event()
        self.may_change.set()
        self.has_read = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def row(self, statement: Statement, values: Values) -> Row | None:
        self.sent += 1
        await self.may_change.wait()
        return await super().row(statement, values)

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        self.sent += 1
        self.queries += 1
        found = await super().rows(statement, values)
        self.has_read.set()
        await self.may_answer.wait()
        return found

    async def transact(self, work: Callable[[Transaction], T], **how: Any) -> T:
        self.sent += 1
        await self.may_change.wait()
        return await super().transact(work, **how)

    @contextlib.asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        if self.is_deaf:
            yield
            return
        async with super().watch(wake):
            yield


class Member:
    """One process of the fleet."""

    def __init__(self, store: CountingPostgres, presence: Presence, key_cache: KeyCache) -> None:
        self.store = store
        self.presence = presence
        self.key_cache = key_cache

    async def finds_live(self, digest: bytes) -> bool:
        found = await self.key_cache.find(digest)
        return found is not None and found.revoked_at is None

    async def queries(self, digest: bytes) -> int:
        """What one look-up sends."""
        before = self.store.sent
        await self.key_cache.find(digest)
        return self.store.sent - before


@contextlib.asynccontextmanager
async def member(
    url: str, bounds: HeartbeatBounds = PATIENT, *, is_deaf: bool = False, keys_max: int = KEYS_MAX
) -> AsyncIterator[Member]:
    store = CountingPostgres(url, is_deaf=is_deaf)
    presence = Presence(store, bounds)
    key_cache = KeyCache(store, presence, PATIENCE_S, keys_max)
    await presence.start()
    try:
        yield Member(store, presence, key_cache)
    finally:
        store.may_change.set()
        await presence.stop()
        await store.close()
