"""The SQLite store: durable transactions that take turns and always end, and an event loop that never blocks."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from cadenza.store.schema import accounts
from cadenza.store.sqlite.change_mark import ASKED_WRITES
from cadenza.store.sqlite.store import SqliteStore, SqliteTransaction
from cadenza.store.statements import Statement
from cadenza.store.store import StoreUnavailable, Transaction
from tests.store.rows import NOW_MS

WAIT_S = 30.0
TURNS = 200  # iterations of the event loop
COLUMNS = ("id", "email", "password_hash", "created_at")
ADD = Statement(insert(accounts), *COLUMNS)
COUNT = Statement(select(func.count()).select_from(accounts))
IDS = Statement(select(accounts.c.id))

both = pytest.mark.parametrize("is_brief", [True, False], ids=["brief", "long"])


def adding(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.change(ADD, row_of(name))


def row_of(name: str) -> dict[str, object]:
    return {"id": name, "email": f"{name}@example.org", "password_hash": "hash", "created_at": NOW_MS}


def failing(error: Exception) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.change(ADD, row_of("lost"))
        raise error

    return work


def count(tx: Transaction) -> int:
    row = tx.row(COUNT, {})
    assert row is not None
    return int(row[0])


@pytest.fixture
async def store(sqlite_store: SqliteStore) -> SqliteStore:
    """A store whose write connection is open, as it is in a running service."""
    assert await sqlite_store.transact(count, is_brief=True) == 0
    return sqlite_store


@pytest.fixture
def other(sqlite_store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """A connection as another process would have it, which waits for no lock."""
    with contextlib.closing(sqlite3.connect(sqlite_store.path, timeout=0, isolation_level=None)) as connection:
        yield connection


def count_in(connection: sqlite3.Connection) -> int:
    return count(SqliteTransaction(connection))


@both
async def test_a_transaction_is_durable_when_it_returns(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """Once `transact` has returned, another connection sees the change."""
    for number in range(10):
        assert await store.transact(adding(f"acct_{number}"), is_brief=is_brief) == 1
        assert count_in(other) == number + 1


@both
async def test_where_work_runs(store: SqliteStore, is_brief: bool) -> None:
    """Brief work runs on the event loop's thread; all other work runs in a thread."""
    ran_in = await store.transact(lambda _: threading.get_ident(), is_brief=is_brief)
    assert (ran_in == threading.get_ident()) == is_brief


async def test_a_transaction_keeps_other_processes_out(store: SqliteStore) -> None:
    """Reading the change mark drops none of SQLite's locks, as closing one of its files anywhere in a process would."""
    await store.row(COUNT, {})

    def work(_: Transaction) -> str:
        assert store.change_mark() is not None
        begin = f"import sqlite3; sqlite3.connect({str(store.path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
        return subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, check=False).stderr

    assert "database is locked" in await store.transact(work, is_brief=True)


async def test_the_change_mark_is_another_one_after_every_commit_that_may_change_a_key(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    """Brief work that announces nothing leaves it alone; all other commits, also those while it was closed, do not."""
    seen = [store.change_mark()]
    await store.transact(adding("own"), is_brief=True)
    await store.row(COUNT, {})
    assert store.change_mark() == seen[-1] is not None
    await store.transact(lambda tx: tx.announce(), is_brief=True)
    seen.append(store.change_mark())
    await store.transact(adding("not brief"))
    seen.append(store.change_mark())
    SqliteTransaction(other).change(ADD, row_of("foreign"))
    seen.append(store.change_mark())
    await store.close()
    assert store.change_mark() is None
    SqliteTransaction(other).change(ADD, row_of("while closed"))
    await store.transact(adding("opens it again"), is_brief=True)
    seen.append(store.change_mark())
    assert all(seen.count(mark) == 1 for mark in seen)


async def test_the_change_mark_is_exact_while_a_write_is_in_progress(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    """It is the same until the write is committed, and then unknown until it is known that nothing else was."""
    await store.row(COUNT, {})
    before = store.change_mark()
    other.execute("BEGIN IMMEDIATE")  # so that our write cannot begin
    writing = asyncio.create_task(store.transact(adding("own"), is_brief=True))
    await asyncio.sleep(0)
    assert store.change_mark() == before is not None
    other.execute("COMMIT")
    while not count_in(other):  # in this turn of the event loop, which cannot hear of the end of the write meanwhile
        pass
    assert store.change_mark() is None
    await writing
    assert store.change_mark() == before


async def test_the_change_mark_is_not_known_during_a_write_if_nobody_asked_before(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    """After some writes that nobody asked during it is not known in the next one, and exact again in those after it."""
    await store.row(COUNT, {})
    before = store.change_mark()
    for number in range(ASKED_WRITES):
        await store.transact(adding(f"own {number}"), is_brief=True)
    seen: list[object] = []
    for name in ("late", "later"):
        other.execute("BEGIN IMMEDIATE")  # so that our write cannot begin
        writing = asyncio.create_task(store.transact(adding(name), is_brief=True))
        await asyncio.sleep(0)
        seen.append(store.change_mark())
        other.execute("COMMIT")
        await writing
    assert seen == [None, before]
    assert store.change_mark() == before


@both
async def test_work_that_fails_is_rolled_back(store: SqliteStore, other: sqlite3.Connection, is_brief: bool) -> None:
    """The error comes out unchanged, no lock is left, and the next transaction works."""
    for _ in range(3):
        with pytest.raises(LookupError, match="mine"):
            await store.transact(failing(LookupError("mine")), is_brief=is_brief)
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
    await store.transact(adding("next"), is_brief=is_brief)
    assert count_in(other) == 1


@both
async def test_a_damaged_file_refuses_every_write(store: SqliteStore, is_brief: bool) -> None:
    """No write waits forever behind one that could not begin, and the store can be closed."""
    assert await store.empty_log()
    store.path.write_bytes(b"damaged " * 4096)
    async with asyncio.timeout(WAIT_S):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="not a database"):
                await store.transact(adding("refused"), is_brief=is_brief)
        await store.close()


@both
async def test_work_that_fails_between_two_rows_is_over(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """Later commits of other processes are seen, and the next transaction works, even while the error is kept."""

    def work(tx: Transaction) -> None:
        assert tx.row(IDS, {}), "and another row is left"
        raise LookupError

    for name in ("one", "two"):
        await store.transact(adding(name))
    with pytest.raises(LookupError) as kept:
        await store.transact(work, is_brief=is_brief)
    before = store.change_mark()
    SqliteTransaction(other).change(ADD, row_of("foreign"))
    assert store.change_mark() != before
    assert await store.transact(count, is_brief=True) == 3, kept


@both
async def test_waiting_for_a_lock_does_not_block_the_loop(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """While another process holds the lock, the loop runs and rows are read; then the transaction goes ahead."""
    other.execute("BEGIN IMMEDIATE")
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    writing = asyncio.create_task(store.transact(adding("late"), is_brief=is_brief))
    for _ in range(TURNS):
        await asyncio.sleep(0)
        assert await store.row(COUNT, {}) == (0,)
    await asyncio.sleep(0.1)
    assert not writing.done()
    assert loop.time() - started_s < WAIT_S / 2
    other.execute("COMMIT")
    assert await asyncio.wait_for(writing, WAIT_S) == 1
    assert count_in(other) == 1
    assert await store.transact(lambda _: threading.get_ident(), is_brief=True) == threading.get_ident()


@both
async def test_a_caller_cancelled_while_it_waits_for_the_lock(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """The caller returns at once; its transaction still runs when the lock is free, and the next one works."""
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.transact(adding("left"), is_brief=is_brief))
    queued = asyncio.create_task(store.transact(adding("queued"), is_brief=is_brief))
    await asyncio.sleep(0.02)
    for task in (writing, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WAIT_S)
    other.execute("COMMIT")
    await asyncio.wait_for(store.transact(adding("next"), is_brief=is_brief), WAIT_S)
    assert count_in(other) == 3


@both
@pytest.mark.parametrize("turns", range(4))
async def test_a_caller_cancelled_at_any_moment(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool, turns: int
) -> None:
    """A transaction is complete or never begun, the lock is free after it, and the next one works."""
    begun: list[int] = []

    def work(tx: Transaction) -> None:
        begun.append(1)
        tx.change(ADD, row_of("left"))
        tx.change(ADD, row_of("left too"))

    writing = asyncio.create_task(store.transact(work, is_brief=is_brief))
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    await asyncio.wait_for(store.transact(adding("next"), is_brief=is_brief), WAIT_S)
    assert count_in(other) == 1 + 2 * len(begun)
    other.execute("BEGIN IMMEDIATE")


async def test_a_failure_after_its_caller_was_cancelled(store: SqliteStore, other: sqlite3.Connection) -> None:
    """If work fails after its caller was cancelled, the next transaction works."""
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.transact(failing(LookupError()), is_brief=True))
    await asyncio.sleep(0.01)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    other.execute("COMMIT")
    await asyncio.wait_for(store.transact(adding("next"), is_brief=True), WAIT_S)
    assert count_in(other) == 1


async def test_many_at_once_take_turns(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Brief and long transactions of one process never overlap, and each sees those before it."""
    inside: list[int] = []
    seen: list[int] = []

    def work(tx: Transaction) -> None:
        inside.append(1)
        assert len(inside) == 1
        seen.append(count(tx))
        tx.change(ADD, row_of(f"acct_{seen[-1]}"))
        inside.pop()

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(store.transact(work, is_brief=number % 3 > 0) for number in range(60)))
    assert sorted(seen) == list(range(60))
    assert count_in(other) == 60


async def test_a_read_keeps_no_snapshot_open(store: SqliteStore, other: sqlite3.Connection) -> None:
    """After reading the first of several rows, a checkpoint can write back the whole log."""
    for name in ("one", "two", "three"):
        await store.transact(adding(name), is_brief=True)
    assert await store.row(Statement(select(accounts.c.id)), {}) is not None
    assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


async def test_a_store_that_was_closed_opens_again(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Closing waits for a running transaction and ends the threads; the next use opens the store again."""
    writing = asyncio.create_task(store.transact(adding("last"), is_brief=False))
    await asyncio.sleep(0)
    await asyncio.gather(writing, store.close())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cadenza-store")]
    await store.transact(adding("first"), is_brief=True)
    assert await store.row(COUNT, {}) == (2,)


@both
async def test_a_lock_that_is_not_released_is_unavailable(
    sqlite_store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """The wait is bounded and the error says what to do; reads work meanwhile, and writes again later."""
    hasty = SqliteStore(sqlite_store.path, wait_s=0.05)
    await hasty.transact(adding("first"), is_brief=is_brief)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"database is locked.*end that process"):
        await hasty.transact(adding("second"), is_brief=is_brief)
    assert await hasty.row(COUNT, {}) == (1,)
    other.execute("COMMIT")
    await hasty.transact(adding("third"), is_brief=is_brief)
    assert await hasty.row(COUNT, {}) == (2,)
    await hasty.close()


async def use(store: SqliteStore, how: str) -> None:
    if how == "row":
        await store.row(COUNT, {})
    elif how == "upgrade":
        await store.upgrade()
    else:
        await store.transact(count, is_brief=how == "brief")


@pytest.mark.parametrize("how", ["row", "brief", "long"])
async def test_a_store_that_was_removed_is_unavailable(sqlite_store: SqliteStore, how: str) -> None:
    """If the file is missing when the store is opened, the error says that there is no schema."""
    await sqlite_store.close()
    for file in sqlite_store.path.parent.iterdir():
        file.unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="cadenza migrate"):
            await use(sqlite_store, how)


@pytest.mark.parametrize("how", ["row", "brief", "long", "upgrade"])
async def test_a_file_that_is_not_a_database_is_unavailable(tmp_path: Path, how: str) -> None:
    """Another file in its place is named as such, each time, and keeps its bytes."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"not a database.*move it away"):
            await use(store, how)
    await store.close()
    assert path.read_text() == "Dear reader, " * 100


@pytest.mark.parametrize("how", ["row", "brief", "long"])
async def test_a_file_that_is_damaged_while_it_is_open_is_unavailable(sqlite_store: SqliteStore, how: str) -> None:
    """Overwritten pages of an open store are a StoreUnavailable."""
    await sqlite_store.transact(adding("first"))
    with contextlib.closing(sqlite3.connect(sqlite_store.path)) as aside:
        aside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await use(sqlite_store, how)
    size = sqlite_store.path.stat().st_size
    sqlite_store.path.write_bytes(sqlite_store.path.read_bytes()[:100] + b"\x55" * (size - 100))
    with contextlib.closing(sqlite3.connect(sqlite_store.path)) as aside, contextlib.suppress(sqlite3.Error):
        aside.execute("PRAGMA user_version = 7")  # so that cached pages are not used
    with pytest.raises(StoreUnavailable):
        await use(sqlite_store, how)


async def test_writes_leave_nothing_behind(store: SqliteStore) -> None:
    """Writes share cursors: the driver keeps a reference to each of the last 200 of a connection."""
    await store.row(COUNT, {})
    await store.transact(count, is_brief=True)
    before = sys.getallocatedblocks()
    for _ in range(150):
        await store.transact(count, is_brief=True)
    assert sys.getallocatedblocks() - before < 75
