"""Any store: transactions, reads, one error for a store that fails, and the private files of SQLite."""

import asyncio
import contextlib
import sqlite3
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text

from cadenza.store.address import open_store
from cadenza.store.migrate import migrate, schema_state
from cadenza.store.schema import accounts
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import SelectByIds, Statement
from cadenza.store.store import Store, StoreRefused, StoreUnavailable, Transaction
from tests.postgres import Postgres
from tests.store.aside import COUNT_OTHERS, DROP_OTHERS, WAIT_S, aside
from tests.store.rows import NOW_MS, add_account

SECRET = "a-value-that-must-not-show"
NEW_ACCOUNT = {"id": "acct_b", "email": "b@example.org", "password_hash": "hash", "created_at": NOW_MS}
ADD = Statement(insert(accounts), *NEW_ACCOUNT)
COUNT = Statement(select(func.count()).select_from(accounts))
OF_IDS = SelectByIds(select(accounts.c.id), accounts.c.id)
WRONG = Statement(text("SELECT no_such_column FROM accounts WHERE id = :id"))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def connect_aside(store: SqliteStore) -> sqlite3.Connection:
    """A connection as another process would have it, which waits for no lock."""
    return sqlite3.connect(store.path, timeout=0, isolation_level=None, check_same_thread=False)


async def count_accounts(store: Store) -> int:
    row = await store.row(COUNT, {})
    assert row
    return int(row[0])


def failing(error: Exception) -> Callable[[Transaction], None]:
    def work(tx: Transaction) -> None:
        tx.change(ADD, NEW_ACCOUNT)
        raise error

    return work


async def test_a_transaction_reads_its_own_changes(store: Store) -> None:
    """Inside a transaction, `change` returns the number of rows, and reads see the change."""
    row = {**NEW_ACCOUNT, "id": "acct_c", "email": "c@example.org"}

    def work(tx: Transaction) -> tuple[object, ...]:
        tx.change_each(ADD, [NEW_ACCOUNT, row])
        changed = tx.change(Statement(text("UPDATE accounts SET preferred_class = :name")), {"name": "mezzo"})
        return changed, tx.row(COUNT, {}), len(tx.rows(Statement(select(accounts.c.id)), {}))

    assert await store.transact(work) == (2, (2,), 2)


async def test_rows_are_found_by_any_number_of_ids(store: Store) -> None:
    """Each row once, however many are asked for with it; an unknown id has none."""
    ids = [(await add_account(store, f"acct_{number}")).id for number in range(9)]

    def found(asked: list[str]) -> Callable[[Transaction], list[str]]:
        return lambda tx: sorted(row[0] for row in tx.rows_by_ids(OF_IDS, asked, {}))

    for count in range(1, len(ids) + 1):
        assert await store.transact(found(["acct_x", *ids[:count]])) == ids[:count]


@pytest.mark.parametrize("error", [LookupError("mine"), BrokenPipeError("mine")])
async def test_an_error_rolls_back(store: Store, error: Exception) -> None:
    """A transaction that raises changes nothing, and its error, even an OSError, comes out unchanged."""
    with pytest.raises(type(error), match="mine"):
        await store.transact(failing(error))
    assert await count_accounts(store) == 0


async def test_concurrent_reads_of_one_process_all_succeed(store: Store) -> None:
    """More long reads at once than there are connections for them take turns."""
    await add_account(store)
    assert await asyncio.gather(*(store.rows(COUNT, {}) for _ in range(40))) == [[(1,)]] * 40


async def test_a_refusal_shows_no_values(store: Store) -> None:
    """A violated constraint is a StoreRefused that names the constraint and no value, not even in its causes."""
    await add_account(store)
    row = {**NEW_ACCOUNT, "email": "acct_a@example.org", "password_hash": SECRET}
    with pytest.raises(StoreRefused, match="email") as caught:
        await store.transact(lambda tx: tx.change(ADD, row))
    printed = "".join(traceback.format_exception(caught.value))
    assert "acct_a@example.org" not in printed
    assert SECRET not in printed


async def test_a_wrong_statement_shows_no_values(store: Store) -> None:
    """An error about a statement contains none of its values."""
    for read in (store.row, store.rows):
        with pytest.raises(Exception, match=r"no_such_column|no such column") as caught:
            await read(WRONG, {"id": SECRET})
        assert SECRET not in str(caught.value)


async def test_a_store_without_a_schema_says_migrate(empty: Store) -> None:
    """A missing table is a StoreUnavailable that names the command to run."""
    with pytest.raises(StoreUnavailable, match="cadenza migrate"):
        await count_accounts(empty)


async def test_ping_needs_no_schema(empty: Store) -> None:
    """A store that can be reached answers a ping before it has a schema."""
    await empty.ping()


async def test_sqlite_settings_hold_on_every_connection(sqlite_store: SqliteStore) -> None:
    """WAL mode, full synchronous writes, foreign keys; REPLACE fires the delete triggers; those in threads wait."""
    names = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "busy_timeout")
    pragmas = [Statement(text(f"PRAGMA {name}")) for name in names]

    def settings(tx: Transaction) -> list[object]:
        return [tx.row(pragma, {}) for pragma in pragmas]

    assert [await sqlite_store.row(pragma, {}) for pragma in pragmas[:3]] == [("wal",), (2,), (1,)]
    read = [await sqlite_store.rows(pragma, {}) for pragma in pragmas]
    assert (read[:3], read[-1]) == ([[("wal",)], [(2,)], [(1,)]], [(10_000,)])
    assert await sqlite_store.transact(settings) == [("wal",), (2,), (1,), (1,), (10_000,)]
    assert (await sqlite_store.transact(settings, is_brief=True))[:4] == [("wal",), (2,), (1,), (1,)]


async def test_a_sqlite_read_cannot_write(sqlite_store: SqliteStore) -> None:
    """The connections for reads refuse a change."""
    for read in (sqlite_store.row, sqlite_store.rows):
        with pytest.raises(StoreUnavailable, match="readonly"):
            await read(ADD, NEW_ACCOUNT)


async def test_a_locked_store_is_not_migrated(tmp_path: Path) -> None:
    """A migration that waits too long for another process's lock says what to do, and changes nothing."""
    hasty = SqliteStore(tmp_path / "cadenza.db", wait_s=0.05)
    await hasty.ping()
    with contextlib.closing(connect_aside(hasty)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"database is locked.*end that process"):
            await migrate(hasty)
    assert (await schema_state(hasty)).state == "empty"
    await hasty.close()


async def test_sqlite_files_are_private(tmp_path: Path) -> None:
    """The folder is made 0700, the file and its side files 0600."""
    folder = tmp_path / "store"
    store = SqliteStore(folder / "cadenza.db")
    await migrate(store)
    await store.ping()
    modes = {file.name: mode_of(file) for file in folder.iterdir()}
    assert modes == {"cadenza.db": 0o600, "cadenza.db-wal": 0o600, "cadenza.db-shm": 0o600}
    assert mode_of(folder) == 0o700
    await store.close()


async def test_a_file_open_to_others_is_made_private(sqlite_store: SqliteStore) -> None:
    """A file that others may read is made private when the store is opened again."""
    await sqlite_store.close()
    sqlite_store.path.chmod(0o644)
    await sqlite_store.ping()
    assert mode_of(sqlite_store.path) == 0o600


@pytest.mark.parametrize("name", ["file/cadenza.db", "folder"])
async def test_a_path_that_cannot_be_opened_is_unavailable(tmp_path: Path, name: str) -> None:
    """A folder that cannot be made, or a folder in place of the file, is a StoreUnavailable."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/{name}")
    for use in (store.ping, lambda: schema_state(store), store.upgrade):
        with pytest.raises(StoreUnavailable, match="Check that its folder can be written"):
            await use()
    await store.close()


async def test_lost_connections_are_replaced(postgres: Postgres) -> None:
    """When Postgres drops its connections, at most one use fails and the next one connects again."""
    with postgres.database() as url:
        store = open_store(url, WAIT_S)
        await asyncio.gather(*(store.ping() for _ in range(20)))
        async with aside(url) as other:
            await other.rows(DROP_OTHERS)
            async with asyncio.timeout(WAIT_S):
                while await other.rows(COUNT_OTHERS) != [(0,)]:
                    pass
        with contextlib.suppress(StoreUnavailable):
            await store.ping()
        for _ in range(20):
            await store.ping()
        await store.close()


async def test_a_postgres_that_does_not_run_is_unavailable(tmp_path: Path) -> None:
    """An address without a server is a StoreUnavailable that does not show the password."""
    store = open_store(f"postgresql://user:{SECRET}@/db?host={tmp_path}")
    with pytest.raises(StoreUnavailable, match="Check that Postgres runs") as caught:
        await store.ping()
    await store.close()
    assert SECRET not in str(caught.value)


async def test_a_current_sqlite_store_does_not_load_asyncpg(sqlite_store: SqliteStore) -> None:
    """Opening, migrating and reading a SQLite store whose schema is current imports nothing that it does not need."""
    program = f"""
import asyncio, sys
from cadenza.store.tables import accounts
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate

async def main():
    store = open_store("sqlite:///{sqlite_store.path}")
    await migrate(store)
    await accounts.list_all(store)
    await store.close()

asyncio.run(main())
print([name for name in ("asyncpg", "sqlalchemy.ext.asyncio") if name in sys.modules])
"""
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    said, _ = await running.communicate()
    assert said.decode().strip() == "[]"


@pytest.mark.parametrize(
    "url", ["", "cadenza.db", "mysql://host:1,2/db", "sqlite://", "sqlite:///:memory:", "postgresql://[host/db"]
)
def test_an_address_that_is_not_understood_says_how_to_write_it(url: str) -> None:
    """Anything but a SQLite file or a Postgres database is refused at once."""
    with pytest.raises(StoreUnavailable, match=r"sqlite:///\./data/cadenza\.db"):
        open_store(url)
