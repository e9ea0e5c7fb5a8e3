"""A simulated SQLite store: one file that several processes of one machine share, one writer at a time.

Small reads and brief work run on the event loop, without a wait. A commit takes as long as the disk. Work that is not
brief waits for the lock of the file in a thread. A transaction runs to its end even if its caller is cancelled.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from cadenza.store.process_locks import ProcessLocks
from cadenza.store.sqlite.store import POLL_INTERVAL_S
from cadenza.store.statements import SelectByIds, Statement, Values
from cadenza.store.store import WAIT_S, Row, StoreRefused, StoreUnavailable, Transaction
from tests.simulation.database import ModelDatabase, ModelSession, Refused, RowChanges, StatementResult
from tests.simulation.scheduler import VirtualLoop

T = TypeVar("T")
COMMIT_S = (0.0005, 0.005)
THREAD_S = (0.00005, 0.0005)


class SqliteFile:
    """The database file on the disk of one machine, its write lock, and the lock files of the live processes."""

    def __init__(self, database: ModelDatabase, random: Random) -> None:
        self.database = database
        self.random = random
        self.is_full = False
        self.writer: object = None  # the store or stranger that has the write lock
        self.watchers: list[tuple[object, Callable[[], None]]] = []  # with their stores
        self.alive = dict[str, VirtualLoop]()
        self.commits = 0
        database.on_commit.append(self._count_commit)

    def _count_commit(self, _changes: RowChanges) -> None:
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


class SimulatedTransaction:
    """The transaction that `work` gets."""

    combines_changes = False

    def __init__(self, session: ModelSession) -> None:
        self._session = session
        self.is_announced = False

    def _run(self, statement: Statement, values: Values) -> StatementResult:
        running = self._session.run(statement, values)
        try:
            next(running)
        except StopIteration as done:
            result: StatementResult = done.value
            return result
        except Refused as error:
            raise StoreRefused(f"The store refused a change: {error}.") from None
        raise AssertionError("one writer waits for nobody")

    def row(self, statement: Statement, values: Values) -> Row | None:
        rows = self._run(statement, values).rows
        return rows[0] if rows else None

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        return self._run(statement, values).rows

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        return [row for one in ids for row in self.rows(select.one, {**values, "id": one})]

    def change(self, statement: Statement, values: Values) -> int:
        return self._run(statement, values).count

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        for one in values:
            self._run(statement, one)

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        self.change_each(statement, [dict(zip(statement.columns or (), row, strict=True)) for row in rows])

    def announce(self) -> None:
        """Other processes see every commit, so this is for the watchers of the same store."""
        self.is_announced = True

    def overwrite_deleted(self) -> None:
        """There is no file."""


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
        self._session: ModelSession | None = None  # of the transaction that is being written
        self._harmless = 0  # commits of this process that no key is read again for

    async def row(self, statement: Statement, values: Values) -> Row | None:
        with self._read() as tx:
            return tx.row(statement, values)

    def change_mark(self) -> object:
        return self._file.commits - self._harmless

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        await self._pass(THREAD_S)
        with self._read() as tx:
            return tx.rows(statement, values)

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
            file, session = self._file, self._file.database.begin()
            file.writer, self._session = self, session
            tx = SimulatedTransaction(session)
            try:
                done = work(tx)
                if file.is_full and session.has_changes:
                    raise StoreUnavailable("The store cannot be used: database or disk is full.")
                await self._pass(COMMIT_S)
                if file.is_full and session.has_changes:
                    raise StoreUnavailable("The store cannot be used: database or disk is full.")
            except BaseException:
                session.roll_back()
                file.writer = None
                raise
            commits = file.commits
            session.commit()
            if is_brief and not tx.is_announced:
                self._harmless += file.commits - commits
            file.writer = None
            for watcher, committed in file.watchers:
                if tx.is_announced or watcher is not self:
                    committed()
            return done

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
            assert self._session
            self._session.roll_back()
            self._file.writer = None

    @contextlib.contextmanager
    def _read(self) -> Iterator[SimulatedTransaction]:
        session = self._file.database.begin()
        try:
            yield SimulatedTransaction(session)
        finally:
            session.roll_back()

    async def _pass(self, span_s: tuple[float, float]) -> None:
        await asyncio.sleep(self._file.random.uniform(*span_s))
