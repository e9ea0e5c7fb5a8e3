"""A simulated SQLite store: one file that several processes of one machine share, one writer at a time.

Small reads run on the event loop, without a wait. A commit takes as long as the disk, and the work of its transaction
happens at its end: nobody else writes meanwhile. Work that is not brief waits for the lock of the file in a thread. A
transaction runs to its end even if its caller is cancelled.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from cadenza.store.process_locks import ProcessLocks
from cadenza.store.sqlite.store import POLL_INTERVAL_S
from cadenza.store.statements import Statement, Values
from cadenza.store.store import WAIT_S, Row, StoreRefused, StoreUnavailable, Transaction
from tests.simulation.database import Changes, Database
from tests.simulation.scheduler import VirtualLoop

T = TypeVar("T")
COMMIT_S = (0.0005, 0.005)
ANSWER_S = (0.00001, 0.0001)
THREAD_S = (0.00005, 0.0005)


class SqliteFile:
    """The database file on the disk of one machine, its write lock, and the lock files of the live processes."""

    def __init__(self, database: Database, random: Random) -> None:
        self.database = database
        self.random = random
        self.is_full = False
        self.writer: object = None  # the store or stranger that has the write lock
        self.watchers: list[tuple[object, Callable[[], None]]] = []  # with their stores
        self.alive = dict[str, VirtualLoop]()
        self.commits = 0
        database.on_commit.append(self._count_commit)

    def _count_commit(self, _changes: Changes) -> None:
        self.commits += 1


class SimulatedLocks(ProcessLocks):
    """Lock files, which the kernel unlocks when their process dies."""

    def __init__(self, file: SqliteFile, loop: VirtualLoop) -> None:
        self._file = file
        self._loop = loop

    def lock(self, name: str) -> int | None:
        self._file.alive[name] = self._loop
        return 1

    def unlock(self, name: str, lock: int) -> None:
        self._file.alive.pop(name, None)

    def remove_if_free(self, name: str) -> bool:
        owner = self._file.alive.get(name)
        if owner is None or owner.is_dead:
            self._file.alive.pop(name, None)
            return True
        return False

    def names(self) -> list[str]:
        return [*self._file.alive]


class SimulatedSqliteStore:
    """The store as one process sees it."""

    is_shared_by_machines = False
    writes_in_parallel = False
    write_advice = "free space on the disk"

    def __init__(self, file: SqliteFile, loop: VirtualLoop) -> None:
        self.process_locks = SimulatedLocks(file, loop)
        self.path = Path("simulated.db")
        self._file = file
        self._loop = loop
        self._turn = asyncio.Lock()
        self._harmless = 0  # commits of this process that no key is read again for

    async def row(self, statement: Statement, values: Values) -> Row | None:
        found: Row | None = self._file.database.read(lambda tx: tx.row(statement, values))
        return found

    def change_mark(self) -> object:
        return self._file.commits - self._harmless

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        await self._pass(THREAD_S)
        return self._file.database.read(lambda tx: tx.rows(statement, values))

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        return await self.rows(statement, values)

    async def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        is_brief: bool = False,
        is_single: bool = False,
        lock_s: float | None = None,
    ) -> T:
        return await asyncio.shield(asyncio.ensure_future(self._transact(work, is_brief=is_brief)))

    async def _transact(self, work: Callable[[Transaction], T], *, is_brief: bool) -> T:
        async with self._turn:
            if not is_brief or self._file.writer is not None:
                await self._wait_for_lock()
            file = self._file
            file.writer = self
            try:
                await self._pass(COMMIT_S)
                commits = file.commits
                done, tx = file.database.transact(work, before_commit=self._check_disk)
                if is_brief and not tx.is_announced:
                    self._harmless += file.commits - commits
                for watcher, committed in file.watchers:
                    if tx.is_announced or watcher is not self:
                        committed()
                await self._pass(ANSWER_S)
            except sqlite3.IntegrityError as error:
                raise StoreRefused(f"The store refused a change: {error}.") from None
            finally:
                file.writer = None
            return done

    def _check_disk(self) -> None:
        if self._file.is_full:
            raise StoreUnavailable("The store cannot be used: database or disk is full.")

    async def _wait_for_lock(self) -> None:
        """In a thread, by SQLite's busy handler, which looks again and again."""
        until_s = self._loop.time() + WAIT_S
        await self._pass(THREAD_S)
        while self._file.writer is not None:
            if self._loop.time() > until_s:
                raise StoreUnavailable("The store cannot be used: database is locked.")
            await self._pass((0.001, 0.01))

    @contextlib.asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Looks every POLL_INTERVAL_S, and so finds a commit within this time."""
        is_due = False

        def committed() -> None:
            nonlocal is_due
            if not is_due:
                is_due = True
                self._loop.call_later(POLL_INTERVAL_S * self._file.random.random(), look)

        def look() -> None:
            nonlocal is_due
            is_due = False
            wake()

        self._file.watchers.append((self, committed))
        try:
            yield
        finally:
            self._file.watchers.remove((self, committed))

    async def ping(self) -> None:
        """It answers."""

    async def find_damage(self) -> str | None:
        return None

    async def empty_log(self) -> bool:
        return True

    async def close(self) -> None:
        """There is nothing to close."""

    async def upgrade(self, revision: str = "head") -> Path | None:
        raise NotImplementedError

    def lost(self) -> None:
        """The process died: its lock is dropped, and what it did not commit is gone."""
        if self._file.writer is self:
            self._file.writer = None

    async def _pass(self, span_s: tuple[float, float]) -> None:
        await asyncio.sleep(self._file.random.uniform(*span_s))
