"""SQLite by its own driver, for what runs with every request: the look-up of a key, and the ledger's transactions.

A statement takes microseconds, less than handing it to a thread would: it runs where it is asked for, on the event
loop's thread. What may wait runs in a thread of its own: for the lock of another process, and for the disk at COMMIT.
The connection to write has one user at a time, and a transaction that was begun ends, whoever is cancelled meanwhile.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from cadenza.store.engines import EVERY_PRAGMA, READER_PRAGMA, WRITER_PRAGMA, make_file
from cadenza.store.statements import Statement, Values

CACHE_PRAGMA = "cache_size=-8192"  # 8 MB: what the ledger touches stays at hand
CHECKPOINT_PRAGMA = "wal_autocheckpoint=4000"  # 16 MB: what changes often is copied back less often (3%)
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class SqliteStore:
    """One connection to read and one to write, opened when they are first used."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def row(self, statement: Statement, values: Values) -> tuple[Any, ...] | None:
        """Read at once; what was committed before this, by any process, is seen."""
        if self._reader is None:
            self._reader = self._open(READER_PRAGMA)
        return statement.row(self._reader, values)

    async def transact(self, work: Work[T], *, is_brief: bool) -> T:
        """Brief work runs on this thread between BEGIN and COMMIT; any other in the thread, all of it."""
        return await asyncio.shield(self._transact(work, is_brief=is_brief))

    async def _transact(self, work: Work[T], *, is_brief: bool) -> T:
        async with self._turn:
            if not is_brief or not self._begin_now():
                return await self._in_thread(lambda: self._run(work))
            assert self._writer
            with self._rolling_back(self._writer) as writer:
                done = work(writer)
            await self._in_thread(self._commit)
            return done

    def _begin_now(self) -> bool:
        """False where another process holds the lock, or the connection is not open yet."""
        if self._writer is None:
            return False
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True

    def _run(self, work: Work[T]) -> T:
        if self._writer is None:
            self._writer = self._open(WRITER_PRAGMA)
        self._writer.execute(f"PRAGMA busy_timeout={round(self._wait_s * 1000)}")
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            with self._rolling_back(self._writer) as writer:
                done = work(writer)
            self._commit()
            return done
        finally:
            self._writer.execute("PRAGMA busy_timeout=0")

    def _commit(self) -> None:
        assert self._writer
        with self._rolling_back(self._writer) as writer:
            writer.execute("COMMIT")

    @staticmethod
    @contextlib.contextmanager
    def _rolling_back(writer: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        """Where it fails, nothing of the transaction stays open; SQLite may have ended it by itself."""
        try:
            yield writer
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._thread = self._thread or ThreadPoolExecutor(1, "cadenza-writer")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self, own_pragma: str) -> sqlite3.Connection:
        try:
            make_file(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror or "it cannot be opened") from None
        connection = sqlite3.connect(self._path, timeout=self._wait_s, isolation_level=None, check_same_thread=False)
        for pragma in (*EVERY_PRAGMA, own_pragma, CACHE_PRAGMA, CHECKPOINT_PRAGMA, "busy_timeout=0"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    async def close(self) -> None:
        async with self._turn:
            thread, self._thread = self._thread, None
            for connection in (self._reader, self._writer):
                if connection:
                    connection.close()
            self._reader = self._writer = None
            if thread:
                thread.shutdown()
