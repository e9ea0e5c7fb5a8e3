"""Processes that only register themselves, for the tests of the living and the dead.

python -m tests.store.presences URL     prints its name once it is registered, and stops after a line of input
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from cadenza.store import schema
from cadenza.store.address import open_store
from cadenza.store.postgres import PostgresStore
from cadenza.store.processes import Bounds, Presence
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, Store, StoreUnavailable, T, Transaction
from tests.environment import environment
from tests.store.moves import comes_true

ROOT = Path(__file__).parents[2]
QUICK = Bounds(beat_every_s=0.01)  # the bounds as they are, by a clock that only the test moves; beats come quickly
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
        super().__init__(url)
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


@asynccontextmanager
async def present(store: Store, clock: HandClock | None = None, bounds: Bounds = QUICK) -> AsyncIterator[Presence]:
    presence = Presence(store, bounds, clock or HandClock())
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

    assert store.is_sqlite or await comes_true(have)


async def pass_time(store: Store, clock: HandClock, seconds: float, *those: Presence) -> None:
    """Move the clock in steps, in each of which all of them beat."""
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        clock.now_s = min(until_s, clock.now_s + 0.5)
        await all_beat(store, *those)


@asynccontextmanager
async def other_process(url: str) -> AsyncIterator[tuple[Process, str]]:
    """A registered process and its name. It is killed at the end of the block."""
    command = (sys.executable, "-m", "tests.store.presences", url)
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment(), stdin=PIPE, stdout=PIPE)
    assert started.stdout is not None
    name = (await started.stdout.readline()).decode().strip()
    try:
        yield started, name
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def main(url: str) -> None:
    store = open_store(url)
    presence = Presence(store)
    await presence.start()
    sys.stdout.write(f"{presence.name}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    await presence.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
