"""SQLite by its own driver: transactions that last, end and take turns, and a loop that is never kept waiting."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from cadenza.store.database import Database, StoreRefused, StoreUnavailable
from cadenza.store.schema import accounts
from cadenza.store.sqlite import SqliteStore
from cadenza.store.statements import Executor, Statement
from tests.store.rows import NOW_MS

WAIT_S = 10.0
TURNS = 200  # of the loop: more than it takes to block it
COLUMNS = ("id", "email", "password_hash", "created_at")
ADD = Statement(insert(accounts), *COLUMNS)
COUNT = Statement(select(func.count()).select_from(accounts))

both = pytest.mark.parametrize("is_brief", [True, False], ids=["brief", "long"])


def adding(name: str) -> Callable[[Executor], int]:
    return lambda connection: ADD.change(connection, row_of(name))


def row_of(name: str) -> dict[str, object]:
    return {"id": name, "email": f"{name}@example.org", "password_hash": "hash", "created_at": NOW_MS}


def failing(error: Exception) -> Callable[[Executor], int]:
    def work(connection: Executor) -> int:
        ADD.change(connection, row_of("lost"))
        raise error

    return work


def count(connection: Executor) -> int:
    row = COUNT.row(connection, {})
    assert row is not None
    return int(row[0])


@pytest.fixture
async def store(sqlite_db: Database) -> AsyncIterator[SqliteStore]:
    """Its connection to write is open already, as it is in a service that runs."""
    assert sqlite_db.path
    made = SqliteStore(sqlite_db.path, WAIT_S)
    assert await made.transact(count, is_brief=True) == 0
    yield made
    await made.close()


@pytest.fixture
def other(sqlite_db: Database) -> Iterator[sqlite3.Connection]:
    """A connection as another process would have it, that waits for nothing."""
    assert sqlite_db.path
    with contextlib.closing(sqlite3.connect(sqlite_db.path, timeout=0, isolation_level=None)) as connection:
        yield connection


@both
async def test_a_transaction_is_durable_when_it_returns(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """Whatever has returned is seen by another connection in the same moment."""
    for number in range(10):
        assert await store.transact(adding(f"acct_{number}"), is_brief=is_brief) == 1
        assert count(other) == number + 1


@both
async def test_where_work_runs(store: SqliteStore, is_brief: bool) -> None:
    """Brief work runs on the loop's own thread, where it costs no change of thread; any other does not."""
    ran_in = await store.transact(lambda _: threading.get_ident(), is_brief=is_brief)
    assert (ran_in == threading.get_ident()) == is_brief


@both
async def test_settings_hold_for_what_is_written(store: SqliteStore, is_brief: bool) -> None:
    """What is written goes to the disk at COMMIT, keeps foreign keys, and meets the triggers of a replaced row."""

    def settings(connection: sqlite3.Connection) -> list[object]:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers")
        return [connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]

    assert await store.transact(settings, is_brief=is_brief) == ["wal", 2, 1, 1]


@both
async def test_work_that_fails_leaves_nothing(store: SqliteStore, other: sqlite3.Connection, is_brief: bool) -> None:
    """An error rolls back and comes out as it is; no lock is left, and the next transaction goes on."""
    for _ in range(3):
        with pytest.raises(LookupError, match="mine"):
            await store.transact(failing(LookupError("mine")), is_brief=is_brief)
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
    await store.transact(adding("next"), is_brief=is_brief)
    assert count(other) == 1


@both
async def test_a_lock_elsewhere_is_waited_for_off_the_loop(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """While another process holds the lock, the loop turns and rows are read; then the transaction goes ahead."""
    other.execute("BEGIN IMMEDIATE")
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    writing = asyncio.create_task(store.transact(adding("late"), is_brief=is_brief))
    for _ in range(TURNS):
        await asyncio.sleep(0)
        assert store.row(COUNT, {}) == (0,)
    await asyncio.sleep(0.1)
    assert not writing.done()
    assert loop.time() - started_s < WAIT_S / 2
    other.execute("COMMIT")
    assert await asyncio.wait_for(writing, WAIT_S) == 1
    assert count(other) == 1
    assert await store.transact(lambda _: threading.get_ident(), is_brief=True) == threading.get_ident()


@both
async def test_a_caller_that_is_cancelled_while_the_lock_is_awaited(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool
) -> None:
    """It is let go at once; its transaction ends by itself when the lock is free, and the next one works."""
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.transact(adding("left"), is_brief=is_brief))
    queued = asyncio.create_task(store.transact(adding("queued"), is_brief=is_brief))
    await asyncio.sleep(0.02)
    for task in (writing, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)
    other.execute("COMMIT")
    await asyncio.wait_for(store.transact(adding("next"), is_brief=is_brief), WAIT_S)
    assert count(other) == 3


@both
@pytest.mark.parametrize("turns", range(4))
async def test_a_caller_that_is_cancelled_at_any_moment(
    store: SqliteStore, other: sqlite3.Connection, is_brief: bool, turns: int
) -> None:
    """A transaction is whole or never begun, the lock is free after it, and the next one works."""
    begun: list[int] = []

    def work(connection: Executor) -> None:
        begun.append(1)
        ADD.change(connection, row_of("left"))
        ADD.change(connection, row_of("left too"))

    writing = asyncio.create_task(store.transact(work, is_brief=is_brief))
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    await asyncio.wait_for(store.transact(adding("next"), is_brief=is_brief), WAIT_S)
    assert count(other) == 1 + 2 * len(begun)
    other.execute("BEGIN IMMEDIATE")


async def test_a_failure_that_nobody_waits_for_breaks_nothing(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Where the caller was cancelled and its work then fails, the next transaction finds all in order."""
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.transact(failing(LookupError()), is_brief=True))
    await asyncio.sleep(0.01)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    other.execute("COMMIT")
    await asyncio.wait_for(store.transact(adding("next"), is_brief=True), WAIT_S)
    assert count(other) == 1


async def test_many_at_once_take_turns(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Transactions of one process, brief and long, never run inside each other, and all see those before."""
    inside: list[int] = []
    seen: list[int] = []

    def work(connection: Executor) -> None:
        inside.append(1)
        assert len(inside) == 1
        seen.append(count(connection))
        ADD.change(connection, row_of(f"acct_{seen[-1]}"))
        inside.pop()

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(store.transact(work, is_brief=number % 3 > 0) for number in range(60)))
    assert sorted(seen) == list(range(60))
    assert count(other) == 60


async def test_a_row_is_what_is_committed_now(store: SqliteStore, other: sqlite3.Connection) -> None:
    """A read sees what another connection committed just before it, and nothing that is not committed."""
    for number in range(10):
        other.execute("BEGIN IMMEDIATE")
        ADD.change(other, row_of(f"acct_{number}"))
        assert store.row(COUNT, {}) == (number,)
        other.execute("COMMIT")
        assert store.row(COUNT, {}) == (number + 1,)


async def test_a_row_keeps_nothing_open(store: SqliteStore, other: sqlite3.Connection) -> None:
    """After a read of one row of many no snapshot is held: the log can be written back whole."""
    for name in ("one", "two", "three"):
        await store.transact(adding(name), is_brief=True)
    assert store.row(Statement(select(accounts.c.id)), {}) is not None
    assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


async def test_a_row_cannot_be_written(store: SqliteStore, other: sqlite3.Connection) -> None:
    """The connection to read refuses a change."""
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.row(ADD, row_of("sly"))
    assert count(other) == 0


async def test_a_store_that_was_closed_opens_again(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Closing waits for what runs, leaves no thread, and the next use works."""
    writing = asyncio.create_task(store.transact(adding("last"), is_brief=False))
    await asyncio.sleep(0)
    await asyncio.gather(writing, store.close())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cadenza-writer")]
    await store.transact(adding("first"), is_brief=True)
    assert store.row(COUNT, {}) == (2,)


@both
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "first"])
async def test_a_constraint_is_a_refusal(sqlite_db: Database, is_brief: bool, is_open: bool) -> None:
    """A row that a constraint forbids is a StoreRefused that names it; nothing of the transaction stands."""
    if is_open:
        await sqlite_db.transact(adding("there"), is_brief=is_brief)

    def work(connection: Executor) -> None:
        adding("new")(connection)
        ADD.change(connection, {**row_of("newer"), "email": "new@example.org"})

    with pytest.raises(StoreRefused, match=r"accounts\.email"):
        await sqlite_db.transact(work, is_brief=is_brief)
    assert await sqlite_db.row(COUNT, {}) == (int(is_open),)


@both
async def test_a_lock_that_is_not_given_up_is_unavailable(
    sqlite_db: Database, other: sqlite3.Connection, is_brief: bool
) -> None:
    """A wait in vain says what to do, and is not for ever; rows are read meanwhile, and later it works."""
    hasty = Database(f"sqlite:///{sqlite_db.path}", wait_s=0.05)
    await hasty.transact(adding("first"), is_brief=is_brief)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"database is locked.*end that process"):
        await hasty.transact(adding("second"), is_brief=is_brief)
    assert await hasty.row(COUNT, {}) == (1,)
    other.execute("COMMIT")
    await hasty.transact(adding("third"), is_brief=is_brief)
    assert await hasty.row(COUNT, {}) == (2,)
    await hasty.close()


async def use(db: Database, how: str) -> None:
    if how == "row":
        await db.row(COUNT, {})
    else:
        await db.transact(count, is_brief=how == "brief")


@pytest.mark.parametrize("how", ["row", "brief", "long"])
async def test_a_store_that_was_removed_is_unavailable(sqlite_db: Database, how: str) -> None:
    """Where the file is gone when the store is opened, the schema is missing, and that is what is said."""
    assert sqlite_db.path
    await sqlite_db.close()
    for file in sqlite_db.path.parent.iterdir():
        file.unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="cadenza migrate"):
            await use(sqlite_db, how)


@pytest.mark.parametrize("how", ["row", "brief", "long"])
async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path, how: str) -> None:
    """Some other file in its place is named as such, each time, and keeps its bytes."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)
    db = Database(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"not a database.*move it away"):
            await use(db, how)
    await db.close()
    assert path.read_text() == "Dear reader, " * 100


@pytest.mark.parametrize("how", ["row", "brief", "long"])
async def test_a_file_that_is_damaged_while_it_is_open_is_unavailable(sqlite_db: Database, how: str) -> None:
    """Pages that are overwritten under an open store are a StoreUnavailable, and no crash."""
    assert sqlite_db.path
    await sqlite_db.transact(adding("first"))
    with contextlib.closing(sqlite3.connect(sqlite_db.path)) as aside:
        aside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await use(sqlite_db, how)
    size = sqlite_db.path.stat().st_size
    sqlite_db.path.write_bytes(sqlite_db.path.read_bytes()[:100] + b"\x55" * (size - 100))
    with contextlib.closing(sqlite3.connect(sqlite_db.path)) as aside, contextlib.suppress(sqlite3.Error):
        aside.execute("PRAGMA user_version = 7")  # so that nobody goes by what it has read before
    with pytest.raises(StoreUnavailable):
        await use(sqlite_db, how)


@both
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "first"])
async def test_an_os_error_of_the_work_is_its_own(sqlite_db: Database, is_brief: bool, is_open: bool) -> None:
    """An OSError raised inside a transaction is not taken for a fault of the store."""
    if is_open:
        await sqlite_db.transact(adding("there"), is_brief=is_brief)
    with pytest.raises(BrokenPipeError):
        await sqlite_db.transact(failing(BrokenPipeError()), is_brief=is_brief)
    assert await sqlite_db.row(COUNT, {}) == (int(is_open),)
