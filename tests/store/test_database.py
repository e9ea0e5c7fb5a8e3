"""Database: transactions that are what they say, one error for a store that fails, and private files."""

import asyncio
import contextlib
import sqlite3
import stat
import traceback
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from cadenza.store.database import Database, StoreRefused, StoreUnavailable, migrate
from cadenza.store.schema import accounts
from tests.postgres import Postgres
from tests.store.rows import NOW_MS, add_account

SECRET = "a-value-that-must-not-show"
NEW_ACCOUNT = {"id": "acct_b", "email": "b@example.org", "password_hash": "hash", "created_at": NOW_MS}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def connect_aside(db: Database) -> sqlite3.Connection:
    """Another connection, as another process would have it, that waits for nothing."""
    assert db.path is not None
    return sqlite3.connect(db.path, timeout=0, isolation_level=None)


async def count_accounts(db: Database) -> int:
    async with db.read() as conn:
        return (await conn.execute(select(func.count()).select_from(accounts))).scalar_one()


async def test_a_write_is_seen_by_the_next_read(db: Database) -> None:
    """What a finished transaction wrote is there for a read."""
    await add_account(db)
    assert await count_accounts(db) == 1


async def test_an_error_rolls_back(db: Database) -> None:
    """A transaction that raises leaves nothing and lets the error through."""

    async def write_and_fail() -> None:
        async with db.write() as conn:
            await conn.execute(accounts.insert().values(NEW_ACCOUNT))
            raise LookupError

    with pytest.raises(LookupError):
        await write_and_fail()
    assert await count_accounts(db) == 0


async def test_cancellation_rolls_back(db: Database) -> None:
    """A transaction that is cancelled leaves nothing, and the next one goes ahead."""
    written = asyncio.Event()

    async def write_and_wait() -> None:
        async with db.write() as conn:
            await conn.execute(accounts.insert().values(NEW_ACCOUNT))
            written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write_and_wait())
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count_accounts(db) == 0
    await add_account(db)
    assert await count_accounts(db) == 1


async def test_an_os_error_of_the_caller_is_its_own(db: Database) -> None:
    """An OSError raised inside a transaction is not taken for a fault of the store."""
    with pytest.raises(BrokenPipeError):
        async with db.write():
            raise BrokenPipeError


async def test_concurrent_writers_of_one_process_queue(db: Database) -> None:
    """Many writers at once in one process all succeed."""
    await asyncio.gather(*(add_account(db, f"acct_{number}") for number in range(40)))
    assert await count_accounts(db) == 40


async def test_a_refusal_shows_no_values(db: Database) -> None:
    """A violated constraint is a StoreRefused that names the constraint and no value, not even in its causes."""
    await add_account(db)
    row = {**NEW_ACCOUNT, "email": "acct_a@example.org", "password_hash": SECRET}
    with pytest.raises(StoreRefused, match="email") as caught:
        async with db.write() as conn:
            await conn.execute(accounts.insert().values(row))
    printed = "".join(traceback.format_exception(caught.value))
    assert "acct_a@example.org" not in printed
    assert SECRET not in printed


async def test_a_wrong_statement_shows_no_values(db: Database) -> None:
    """An error about a statement carries none of its parameters."""
    with pytest.raises(Exception, match=r"no_such_column|no such column") as caught:
        async with db.read() as conn:
            await conn.execute(text("SELECT no_such_column FROM accounts WHERE id = :id"), {"id": SECRET})
    assert SECRET not in str(caught.value)


async def test_a_store_without_a_schema_says_migrate(empty: Database) -> None:
    """A missing table is answered with the command that makes it."""
    with pytest.raises(StoreUnavailable, match="cadenza migrate"):
        await count_accounts(empty)


async def test_ping_answers(empty: Database) -> None:
    """A store that can be reached answers a ping before it has a schema."""
    await empty.ping()


async def test_sqlite_settings_hold_on_every_connection(sqlite_db: Database) -> None:
    """Readers and the writer run in WAL mode, flush fully, enforce foreign keys and wait for locks."""
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    for opening in (sqlite_db.read(), sqlite_db.write()):
        async with opening as conn:
            found = [(await conn.execute(text(f"PRAGMA {pragma}"))).scalar_one() for pragma in pragmas]
        assert found == ["wal", 2, 1, 10_000]


async def test_a_sqlite_write_holds_the_lock_from_the_start(sqlite_db: Database) -> None:
    """An open write refuses a second writer before it has written anything."""
    with contextlib.closing(connect_aside(sqlite_db)) as other:
        async with sqlite_db.write():
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")


async def test_a_sqlite_read_cannot_write(sqlite_db: Database) -> None:
    """A reader's connection refuses a change."""
    with pytest.raises(StoreUnavailable, match="readonly"):
        async with sqlite_db.read() as conn:
            await conn.execute(accounts.insert().values(NEW_ACCOUNT))


async def test_a_locked_store_says_so(sqlite_db: Database) -> None:
    """A write that waited in vain for another process's lock says what to do; reads go on meanwhile."""
    hasty = Database(f"sqlite:///{sqlite_db.path}", wait_s=0.05)
    with contextlib.closing(connect_aside(sqlite_db)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"database is locked.*end that process"):
            await add_account(hasty)
        assert await count_accounts(hasty) == 0
    await hasty.close()


async def test_a_writer_cancelled_while_it_waits_takes_no_lock(sqlite_db: Database) -> None:
    """A write that is cancelled in the queue for the lock leaves the lock free once its turn has come."""
    hasty = Database(f"sqlite:///{sqlite_db.path}", wait_s=0.5)
    with contextlib.closing(connect_aside(sqlite_db)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(add_account(hasty), 0.1)
    await add_account(hasty)
    await hasty.close()


async def test_sqlite_files_are_private(sqlite_db: Database, tmp_path: Path) -> None:
    """The folder is made 0700, the file and its side files 0600."""
    folder = tmp_path / "store"
    modes = {file.name: mode_of(file) for file in folder.iterdir()}
    assert modes == {"cadenza.db": 0o600, "cadenza.db-wal": 0o600, "cadenza.db-shm": 0o600}
    assert mode_of(folder) == 0o700


async def test_a_file_open_to_others_is_closed_to_them(sqlite_db: Database) -> None:
    """A store whose file was made readable for others is made private when it is opened again."""
    assert sqlite_db.path is not None
    await sqlite_db.close()
    sqlite_db.path.chmod(0o644)
    await sqlite_db.ping()
    assert mode_of(sqlite_db.path) == 0o600


@pytest.mark.parametrize("name", ["file/cadenza.db", "folder"])
async def test_a_path_that_cannot_be_opened_is_unavailable(tmp_path: Path, name: str) -> None:
    """A folder that cannot be made, or a folder where the file should be, is one StoreUnavailable."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    db = Database(f"sqlite:///{tmp_path}/{name}")
    with pytest.raises(StoreUnavailable, match="Check that its folder can be written"):
        await db.ping()
    await db.close()


async def test_a_file_that_is_no_database_is_unavailable_and_untouched(tmp_path: Path) -> None:
    """Some other file in the store's place is named as such and keeps its bytes."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)
    db = Database(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match=r"not a database.*move it away"):
        await migrate(db)
    await db.close()
    assert path.read_text() == "Dear reader, " * 100


async def test_a_lost_connection_is_unavailable_once(postgres: Postgres) -> None:
    """When Postgres drops its connections, one use fails and the next one connects anew."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with postgres.database() as url:
        db, other = Database(url), Database(url)
        await db.ping()
        async with other.write() as conn:
            await conn.execute(text(others))
        with pytest.raises(StoreUnavailable, match="Check that Postgres runs"):
            await db.ping()
        await db.ping()
        await db.close()
        await other.close()


async def test_a_postgres_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """No server behind the address is one StoreUnavailable that keeps the password to itself."""
    db = Database(f"postgresql://user:{SECRET}@/db?host={tmp_path}", wait_s=5)
    with pytest.raises(StoreUnavailable, match="Check that Postgres runs") as caught:
        await db.ping()
    await db.close()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["", "cadenza.db", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_an_address_that_is_not_understood_says_how_to_write_it(url: str) -> None:
    """Anything but a SQLite file or a Postgres database is refused at once."""
    with pytest.raises(StoreUnavailable, match=r"sqlite:///\./data/cadenza\.db"):
        Database(url)
