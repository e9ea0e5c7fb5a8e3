"""Presences, and processes that only register themselves, for the tests of the living and the dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import select

from cadenza.fleet.presence import HeartbeatBounds, Host, Presence
from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store import schema
from cadenza.store.address import open_store
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, Store, StoreUnavailable, T, Transaction
from tests.store.forked import Fork, forked, listen
from tests.store.moves import PATIENCE_S, comes_true

QUICK = HeartbeatBounds(
    heartbeat_every_s=0.01
)  # the bounds as they are, by a clock that only the test moves; beats come quickly
BEATS = Statement(select(schema.processes.c.name, schema.processes.c.beats))


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FailingPostgres(PostgresStore):
    """Does not answer while it is down. `during` runs while a transaction is on its way."""

    def __init__(self, url: str) -> None:
        super().__init__(url, PostgresBounds().with_waits_of(PATIENCE_S))
        self.url = url
        self.is_down = False
        self.failures = 0
        self.during: Callable[[], None] = lambda: None

    async def row(self, statement: Statement, values: Values) -> Row | None:
        self._check()
        return await super().row(statement, values)

    async def transact(self, work: Callable[[Transaction], T], **how: Any) -> T:
        self._check()
        self.during()
        return await super().transact(work, **how)

    def _check(self) -> None:
        if self.is_down:
            self.failures += 1
            raise StoreUnavailable("The store is down.")


class LateAnswers(PostgresStore):
    """Gives the answer to one batch of the ledger late: it is committed, and its caller does not know it yet."""

    def __init__(self, url: str) -> None:
        super().__init__(url, PostgresBounds().with_waits_of(PATIENCE_S))
        self.is_next_late = False
        self.has_committed = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def transact(self, work: Callable[[Transaction], T], **how: Any) -> T:
        is_late = self.is_next_late and "lock_s" in how
        self.is_next_late = self.is_next_late and not is_late
        done = await super().transact(work, **how)
        if is_late:
            self.has_committed.set()
            await self.may_answer.wait()
        return done


@asynccontextmanager
async def present(
    store: Store, clock: HandClock | None = None, bounds: HeartbeatBounds = QUICK
) -> AsyncIterator[Presence]:
    presence = Presence(store, bounds, Host(elapsed_s=clock or HandClock()))
    await presence.start()
    try:
        yield presence
    finally:
        await presence.stop()


async def beats(store: Store) -> dict[str, int]:
    return dict(await store.rows(BEATS, {}))


async def all_beat(store: Store, *those: Presence) -> None:
    """Wait until each of them has written, and so read, at least two further beats."""
    before = await beats(store)

    async def have() -> bool:
        now = await beats(store)
        return all(now[one.name] >= before[one.name] + 2 for one in those)

    assert not store.is_shared_by_machines or await comes_true(have)


async def pass_time(store: Store, clock: HandClock, seconds: float, *those: Presence) -> None:
    """Move the clock in steps, in each of which all of them beat."""
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        clock.now_s = min(until_s, clock.now_s + 0.5)
        await all_beat(store, *those)


@asynccontextmanager
async def other_process(url: str) -> AsyncIterator[tuple[Fork, str]]:
    """A registered process and its name. It is killed at the end of the block."""
    async with forked(main, url) as started:
        yield started, await started.on_message()


async def main(line: Connection, url: str) -> None:
    """Say the name of its presence once it is registered, and stop when told."""
    store = open_store(url, PATIENCE_S)
    presence = Presence(store)
    await presence.start()
    line.send(presence.name)
    await listen(line)
    await presence.stop()
    await store.close()
