"""Checkpoints of SQLite: the write-ahead log stays short while commits go on."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable

from sqlalchemy import insert

from cadenza.store.schema import accounts
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.sqlite.write_ahead_log import CHECKPOINT_ROWS
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction
from tests.store.rows import NOW_MS

ADD = Statement(insert(accounts), "id", "email", "password_hash", "created_at")
ROWS = CHECKPOINT_ROWS // 10  # of one transaction
WAIT_S = 30.0


def adding(number: int) -> Callable[[Transaction], None]:
    names = [f"{one:06d}" for one in range(number * ROWS, (number + 1) * ROWS)]
    rows = [{"id": name, "email": f"{name}@example.org", "password_hash": "", "created_at": NOW_MS} for name in names]
    return lambda tx: tx.change_each(ADD, rows)


async def write(store: SqliteStore, transactions: range) -> None:
    for number in transactions:
        await store.transact(adding(number), is_brief=True)


def log_bytes(store: SqliteStore) -> int:
    return store.path.with_name(f"{store.path.name}-wal").stat().st_size


async def test_the_log_begins_anew_while_commits_go_on(sqlite_store: SqliteStore) -> None:
    """Three callers that write without a pause leave a log with a fraction of what they wrote."""
    first = range(10)
    await write(sqlite_store, first)
    of_first = log_bytes(sqlite_store)
    await asyncio.gather(*(write(sqlite_store, range(10 + start, 100, 3)) for start in range(3)))
    assert log_bytes(sqlite_store) < 5 * of_first


async def test_the_log_grows_during_a_read_and_begins_anew_after_it(sqlite_store: SqliteStore) -> None:
    """A connection that keeps a snapshot open stops no commit, and sees none; after it, a checkpoint is complete."""
    await write(sqlite_store, range(1))
    with contextlib.closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM accounts").fetchone() == (ROWS,)
        await write(sqlite_store, range(1, 40))
        assert reader.execute("SELECT COUNT(*) FROM accounts").fetchone() == (ROWS,)
    grown = log_bytes(sqlite_store)
    await write(sqlite_store, range(40, 90))
    assert log_bytes(sqlite_store) < 2 * grown


async def test_closing_waits_for_a_checkpoint(sqlite_store: SqliteStore) -> None:
    """A store that is closed while the log is copied leaves no thread, no log, and everything that was committed."""
    async with asyncio.timeout(WAIT_S):
        await write(sqlite_store, range(10))
        await sqlite_store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cadenza-store")]
    assert not sqlite_store.path.with_name(f"{sqlite_store.path.name}-wal").exists()
    with contextlib.closing(sqlite3.connect(sqlite_store.path)) as other:
        assert other.execute("SELECT COUNT(*) FROM accounts").fetchone() == (10 * ROWS,)
