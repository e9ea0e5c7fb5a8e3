"""A store in one SQLite file, through the driver of the standard library.

A small statement takes microseconds, less than handing it to a thread, so it runs on the event loop's thread. Whatever
may wait runs in a worker thread: reads of several rows, a lock that another process holds, and the disk at COMMIT.
Reports have threads and connections of their own, and end with their caller. There is one write connection, used by one
transaction at a time; the others are queued. A transaction always runs to its end, even if its caller is cancelled. The
driver's own transaction control is off (`isolation_level=None`).
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import text

from cadenza.store.live_processes import PROCESSES, find_locked, refuse_older
from cadenza.store.migrations import find_steps
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.report_turns import REPORTS_MAX, ReportTurns
from cadenza.store.sqlite import files, write_ahead_log
from cadenza.store.sqlite.change_mark import ChangeMark
from cadenza.store.sqlite.write_thread import WriteThread
from cadenza.store.statements import SQLITE, SelectByIds, Statement, Values
from cadenza.store.store import (
    WAIT_S,
    Row,
    StoreRefused,
    Transaction,
    unavailable,
)

READS_MAX = 4
IDS_MAX = 128  # in one statement
PROGRESS_STEPS = 20_000  # of SQLite's machine, about a millisecond: how often a report looks whether it is cancelled
POLL_INTERVAL_S = 0.04  # for commits of other processes; `Store.watch` promises 50 ms
DURABLE = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
READ_ONLY = "query_only=ON"
STRICT_TRIGGERS = "recursive_triggers=ON"  # so that INSERT OR REPLACE fires the triggers that refuse a delete
BUSY = ("cache_size=-8192", f"wal_autocheckpoint={write_ahead_log.LOG_PAGES_MAX}")  # 8 MB of cache
WRITER_CACHE = "cache_size=-32768"  # 1,000 accounts in turn touch some 20 MB of a large store
PING = Statement(text("PRAGMA schema_version"))
QUICK_CHECK = Statement(text("PRAGMA quick_check(1)"))
ADVICE = {
    "not a database": "Another file is in its place: move it away, or give the store another path.",
    "malformed": "The file is damaged: stop the service, keep the file, and put a backup in its place.",
    "disk is full": "Free space on its disk.",
}
WRITABLE = "Check that its folder can be written by this user and that the disk has space."
T = TypeVar("T")

# The driver takes numbers and texts as they are. For another type it asks four places how to adapt it, and fails twice
# inside, which takes 2 µs; but first it looks here.
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), {None: None}.__getitem__)


class SqliteTransaction(msgspec.Struct):
    """Runs statements on one connection."""

    _cursor: sqlite3.Cursor | sqlite3.Connection
    is_announced: bool = False
    combines_changes: bool = False

    def row(self, statement: Statement, values: Values) -> Row | None:
        row: Row | None = self._cursor.execute(statement.sqlite_text, statement.sqlite_values(values)).fetchone()
        return row

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        return self._cursor.execute(statement.sqlite_text, statement.sqlite_values(values)).fetchall()

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        selected: list[Row] = []
        for begin in range(0, len(ids), IDS_MAX):
            selected += self.rows(*select.for_sqlite(ids[begin : begin + IDS_MAX], values))
        return selected

    def change(self, statement: Statement, values: Values) -> int:
        return self._cursor.execute(statement.sqlite_text, statement.sqlite_values(values)).rowcount

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        self._cursor.executemany(statement.sqlite_text, map(statement.sqlite_values, values))

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        self._cursor.executemany(statement.sqlite_text, rows)

    def announce(self) -> None:
        """Other processes see every commit, so this is for our own watchers."""
        self.is_announced = True

    def overwrite_deleted(self) -> None:
        self._cursor.execute("PRAGMA secure_delete = ON").fetchone()


class Write(msgspec.Struct):
    """What waits for the write connection: `run` in the write thread or, if it is brief, `work` on the event loop."""

    run: Callable[[], Any]
    work: Callable[[Transaction], Any] | None
    answer: "asyncio.Future[Any]"

    def done(self, result: object, error: BaseException | None) -> None:
        """Give the caller its result, unless it was cancelled."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class ReadThreads:
    """Up to `count` threads that read, each on a connection of its own."""

    def __init__(self, name: str, count: int, open_reader: Callable[[], sqlite3.Connection]) -> None:
        self._name = name
        self._count = count
        self._open_reader = open_reader
        self._idle: list[sqlite3.Connection] = []
        self._threads: ThreadPoolExecutor | None = None

    def start(
        self, work: Callable[[Transaction], T], is_cancelled: Callable[[], bool] | None = None
    ) -> "asyncio.Future[T]":
        """Do the work in a thread. It ends soon after `is_cancelled` returns True."""
        self._threads = self._threads or ThreadPoolExecutor(self._count, self._name)
        return asyncio.get_running_loop().run_in_executor(self._threads, self._run, work, is_cancelled)

    async def run_cancellably(self, work: Callable[[Transaction], T]) -> T:
        """Do the work in a thread. A caller that is cancelled interrupts it, and waits until the thread is free."""
        cancelled = threading.Event()
        running = self.start(work, cancelled.is_set)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([running])
            running.exception()  # it is expected, so it is not logged
            raise

    async def close(self) -> None:
        """Wait for what runs, and close the connections. The next use opens them again."""
        threads, self._threads = self._threads, None
        if threads:
            await asyncio.to_thread(threads.shutdown)
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _run(self, work: Callable[[Transaction], T], is_cancelled: Callable[[], bool] | None) -> T:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open_reader()
        if is_cancelled:
            connection.set_progress_handler(is_cancelled, PROGRESS_STEPS)
        try:
            return work(SqliteTransaction(connection))
        finally:
            self._idle.append(connection)


class SqliteStore:
    """One connection for small reads, one for writes, up to READS_MAX for larger reads and REPORTS_MAX for reports."""

    is_shared_by_machines = False
    writes_in_parallel = False
    write_advice = "End a process that locks it, free space on its disk, and check that its folder can be written."

    def __init__(self, path: Path, wait_s: float = WAIT_S) -> None:
        self.path = path
        self.process_locks = ProcessLocks(path)
        self._wait_s = wait_s
        self._wait_pragma = f"busy_timeout={round(wait_s * 1000)}"
        self._reader: sqlite3.Cursor | None = None  # of the connection for small reads, on the event loop
        self._read_threads = ReadThreads("cadenza-store-read", READS_MAX, self._open_reader)
        self._report_threads = ReadThreads("cadenza-store-report", REPORTS_MAX, self._open_reader)
        self._turns = ReportTurns()
        self._writer: sqlite3.Cursor | None = None  # used by the write that is in progress
        self._write_thread: WriteThread | None = None
        self._waiting: deque[Write] = deque()
        self._writing: Write | None = None
        self._is_announced = False  # the write in progress wakes our own watchers
        self._change_mark = ChangeMark()
        self._watchers: list[Callable[[], None]] = []
        self._checkpoints = write_ahead_log.Checkpoints(path, self._copy_remaining)

    async def row(self, statement: Statement, values: Values) -> Row | None:
        try:
            if self._reader is None:
                self._reader = self._open(READ_ONLY, *BUSY).cursor()
            reader = self._reader.connection  # a new cursor, which leaves no snapshot open when there are more rows
            row: Row | None = reader.execute(statement.sqlite_text, statement.sqlite_values(values)).fetchone()
        except sqlite3.Error:  # tried again in a thread, which waits for locks
            return await self._read(lambda tx: tx.row(statement, values))
        return row

    def change_mark(self) -> object:
        mark = self._change_mark
        return mark.while_writing(self._reader) if self._writing else mark.while_idle(self._writer)

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        return await self._read(lambda tx: tx.rows(statement, values))

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        async with self._turns.turn(account_id):
            try:
                return await self._report_threads.run_cancellably(lambda tx: tx.rows(statement, values))
            except sqlite3.Error as error:
                raise self._translate(error) from None

    async def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        is_brief: bool = False,
        is_single: bool = False,  # noqa: ARG002 for Postgres
        lock_s: float | None = None,  # noqa: ARG002 for Postgres
    ) -> T:
        try:
            done: T = await self._in_turn(partial(self._run, work), work if is_brief else None)
        except sqlite3.Error as error:
            raise self._translate(error) from None
        return done

    @contextlib.asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        try:
            await self._in_turn(self._open_writer)
        except sqlite3.Error as error:
            raise self._translate(error) from None
        await self.ping()  # the change mark needs the reader too
        with self._polling(wake):
            self._watchers.append(wake)
            try:
                yield
            finally:
                self._watchers.remove(wake)

    @contextlib.contextmanager
    def _polling(self, wake: Callable[[], None]) -> Iterator[None]:
        """For the block, call `wake` within POLL_INTERVAL_S if the mark is another one, or not known."""
        loop, mark, last = asyncio.get_running_loop(), self._change_mark, self.change_mark()
        timer: asyncio.TimerHandle

        def poll() -> None:
            nonlocal last, timer
            current: object = mark.changes
            known_for_s = time.monotonic() - mark.known_s
            if known_for_s > POLL_INTERVAL_S / 2:  # no request or write has polled just now
                current, known_for_s = self.change_mark(), 0.0
            timer = loop.call_later(POLL_INTERVAL_S - known_for_s, poll)
            if current is None or current != last:
                last = current
                wake()

        timer = loop.call_later(POLL_INTERVAL_S, poll)
        try:
            yield
        finally:
            timer.cancel()

    async def ping(self) -> None:
        await self.row(PING, {})

    async def find_damage(self) -> str | None:
        [(verdict,), *_] = await self.report(QUICK_CHECK, {})
        return None if verdict == "ok" else str(verdict).partition("\n")[0]

    async def empty_log(self) -> bool:
        return await write_ahead_log.empty_log(self.path)

    async def close(self) -> None:
        """Wait for running statements, and close all connections. The next use opens the store again."""
        await self._in_turn(self._close_writer)
        await self._checkpoints.stop()
        write_thread, self._write_thread = self._write_thread, None
        if write_thread:
            await asyncio.to_thread(write_thread.stop)
        await self._read_threads.close()
        await self._report_threads.close()
        if self._reader:
            self._reader.connection.close()
            self._reader = None
        self._change_mark.end(is_harmless=False)  # the next reader has versions of its own

    async def upgrade(self) -> Path | None:
        try:
            copy: Path | None = await self._in_turn(self._upgrade)
        except sqlite3.Error as error:
            raise self._translate(error) from None
        return copy

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        try:
            return await self._read_threads.start(work)
        except sqlite3.Error as error:
            raise self._translate(error) from None

    def _open_reader(self) -> sqlite3.Connection:
        return self._open(READ_ONLY, waits=True)

    def _in_turn(
        self, run: Callable[[], Any], work: Callable[[Transaction], Any] | None = None
    ) -> "asyncio.Future[Any]":
        write = Write(run, work, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._write_next()
        return write.answer

    def _write_next(self) -> None:
        """Begin the next write, unless one is in progress."""
        while self._waiting and self._writing is None:
            write = self._writing = self._waiting.popleft()
            run = write.run
            is_begun = write.work is not None and self._begin_now()
            self._change_mark.begin(self._reader, self._writer)
            if write.work and is_begun:
                try:
                    run = partial(self._commit, self._work(write.work))
                except Exception as error:  # noqa: BLE001 it is raised where the answer is awaited
                    self._writing = None
                    write.done(None, error)
                    continue
            self._write_thread = self._write_thread or WriteThread("cadenza-store-write")
            self._write_thread.run(run, self._written, write.answer.get_loop())

    def _written(self, result: object, error: BaseException | None) -> None:
        write, self._writing = self._writing, None
        assert write
        write.done(result, error)
        self._change_mark.end(is_harmless=write.work is not None and not self._is_announced)
        if self._is_announced:
            self._is_announced = False
            for wake in self._watchers:
                wake()
        if isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            self._checkpoints.disk_is_full()
        elif self._writer:
            self._checkpoints.committed(self._writer.connection.total_changes)
        self._write_next()

    def _begin_now(self) -> bool:
        """Begin a transaction without waiting. False if nothing is open yet, or it fails: the thread tries again."""
        if self._writer is None:
            return False
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:  # another process holds the lock, or the file is damaged
            return False
        return True

    def _run(self, work: Callable[[Transaction], T]) -> T:
        writer = self._open_writer()
        writer.execute(f"PRAGMA {self._wait_pragma}")
        try:
            writer.execute("BEGIN IMMEDIATE")
            return self._commit(self._work(work))
        finally:
            writer.execute("PRAGMA busy_timeout=0")

    def _open_writer(self) -> sqlite3.Cursor:
        if self._writer is None:
            self._writer = self._open(
                STRICT_TRIGGERS, *BUSY, WRITER_CACHE
            ).cursor()  # one for all, also for BEGIN and COMMIT
        return self._writer

    def _work(self, work: Callable[[Transaction], T]) -> T:
        """Do the work inside the transaction that has begun."""
        assert self._writer
        tx = SqliteTransaction(self._writer)
        try:
            done = work(tx)
        except BaseException:
            _roll_back(self._writer)  # with the same cursor, so that it also ends a read that is not complete
            raise
        self._is_announced = tx.is_announced
        return done

    def _commit(self, done: T) -> T:
        assert self._writer
        try:
            self._writer.execute("COMMIT")
        except BaseException:
            _roll_back(self._writer)
            raise
        return done

    async def _copy_remaining(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            await self._in_turn(lambda: self._writer and self._writer.execute(write_ahead_log.COPY_LOG).fetchone())

    def _close_writer(self) -> None:
        if self._writer:
            self._writer.connection.close()
            self._writer = None

    def _upgrade(self) -> Path | None:
        """Check, back up and migrate in one transaction that holds the write lock, on a connection of its own."""
        copy = None
        with contextlib.closing(self._open(STRICT_TRIGGERS, waits=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            tx = SqliteTransaction(connection)
            steps = find_steps(tx)
            if steps.found and steps.needed:
                refuse_older(find_locked(self.path, tx.rows(PROCESSES, {})), steps.needed)
            if steps.found and steps.modules:
                try:
                    with contextlib.closing(self._open(READ_ONLY)) as reader:
                        copy = files.back_up(reader, self.path, steps.found)
                except OSError as error:
                    raise sqlite3.OperationalError(f"it cannot be copied ({error.strerror})") from None
            steps.run(tx, SQLITE)
            connection.execute("COMMIT")
        return copy

    def _open(self, *pragmas: str, waits: bool = False) -> sqlite3.Connection:
        """Open a connection. Its statements do not wait for locks, unless it `waits`."""
        try:
            files.make_private_file(self.path)
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror or "it cannot be opened") from None
        connection = sqlite3.connect(self.path, timeout=self._wait_s, isolation_level=None, check_same_thread=False)
        try:
            for pragma in (*DURABLE, *pragmas, self._wait_pragma if waits else "busy_timeout=0"):
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _translate(self, error: sqlite3.Error) -> Exception:
        """The store's error for one of the driver. A ProgrammingError is a bug of ours and stays what it is."""
        if isinstance(error, sqlite3.IntegrityError):
            return StoreRefused(f"The store refused a change: {error}.")
        if isinstance(error, sqlite3.ProgrammingError):
            return error
        reason = str(error).partition(":")[0]
        advice = next((advice for words, advice in ADVICE.items() if words in reason), WRITABLE)
        return unavailable(str(self.path), reason, advice)


def _roll_back(writer: sqlite3.Cursor) -> None:
    """Leave no transaction open. After some errors SQLite has already rolled back."""
    if writer.connection.in_transaction:
        writer.execute("ROLLBACK")
