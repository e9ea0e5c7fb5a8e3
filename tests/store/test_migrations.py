"""The migrations: from nothing to the newest schema, by several processes at once, keeping all rows."""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from cadenza.control.store.prepare import prepare_store, require_store
from cadenza.core.records import Usage
from cadenza.ledger import sweeps
from cadenza.ledger.rules import Ended, Held, Repeated
from cadenza.store import live_processes
from cadenza.store.migrate import REVISIONS, SchemaState, migrate, schema_state
from cadenza.store.migrations import refuse_live
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.schema import accounts, entries, holds, idempotency, metadata, usage
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement
from cadenza.store.store import REVISION_TABLE, Store, StoreRefused, StoreUnavailable
from tests.store.aside import aside
from tests.store.moves import findings, finish, make_hold, money, take
from tests.store.presences import beats, present
from tests.store.processes import run_at_once
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql

HEAD = REVISIONS[-1]
T = TypeVar("T")

ENTRY = "account_id, kind, amount_nano, request_id, note, created_at"  # before revision 0004
FUNDED_AT_0001 = (
    f"INSERT INTO accounts VALUES ('acct_a', 'acct_a@example.org', 'hash', 'forte', {DOLLAR_NANO}, 0, {NOW_MS})",
    f"INSERT INTO entries ({ENTRY}) VALUES ('acct_a', 'grant', {DOLLAR_NANO}, NULL, 'a gift', {NOW_MS})",
)
USED_AT_0003 = (
    f"INSERT INTO entries ({ENTRY}) VALUES ('acct_a', 'charge', -1210, 'r1', '', {NOW_MS})",
    "UPDATE accounts SET balance_nano = balance_nano - 1210, held_nano = 2500",
    f"""
    INSERT INTO holds SELECT 'r1', 'acct_a', id, 'forte', 'proc_a', 'settled', 2500, 100, 0, 10, 30, 2, :yes, {NOW_MS},
        {NOW_MS} FROM keys""",
    f"""
    INSERT INTO holds SELECT 'r2', 'acct_a', id, 'forte', 'proc_a', 'open', 2500, 100, 7, 10, 30, 2, :yes, {NOW_MS},
        NULL FROM keys""",
    f"""
    INSERT INTO usage SELECT 'r1', 'acct_a', id, 'forte', 'acme', 'large', 100, 0, 7, 1210, :no, 200, :yes, {NOW_MS},
        12, 345 FROM keys""",
)
ADD_KEY = Statement(
    text(
        "INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at)"
        " VALUES ('key_a', 'acct_a', '', 'sk-cdz-AAAAA', :digest, '', :now)"
    )
)
ADD_IDEMPOTENCY = Statement(
    text("INSERT INTO idempotency VALUES ('acct_a', :digest, 'r1', 'req-r1', :now)"),
)


async def test_an_empty_store_is_migrated_to_head(empty: Store) -> None:
    """A store without tables is `empty`, and `current` after one migration."""
    before = await schema_state(empty)
    reached = await migrate(empty)
    assert (before, reached) == (SchemaState("empty", None, HEAD), HEAD)
    assert await schema_state(empty) == SchemaState("current", HEAD, HEAD)


async def test_migrating_twice_changes_nothing(store: Store, url: str) -> None:
    """A second migration finds nothing to do and returns the same revision."""
    before = await inspected(url, reflect)
    assert await migrate(store) == HEAD
    assert await inspected(url, reflect) == before


async def test_processes_that_migrate_at_once_take_turns(empty: Store, url: str) -> None:
    """Three processes that start together on an empty store all succeed."""
    assert await run_at_once(*[("migrate", url)] * 3) == [HEAD] * 3
    assert (await schema_state(empty)).state == "current"


async def test_a_failed_migration_changes_nothing(empty: Store, url: str) -> None:
    """A migration that fails half-way is rolled back completely."""
    async with aside(url) as other:
        await other.execute("CREATE TABLE usage (request_id TEXT)")
    with pytest.raises(Exception, match="usage"):
        await migrate(empty)
    assert await inspected(url, lambda connection: inspect(connection).get_table_names()) == ["usage"]


@pytest.mark.parametrize(
    ("revision", "oldest", "state"),
    [("9999", "9998", "ahead"), ("9999", HEAD, "newer"), ("0003", "0003", "behind"), (HEAD, "0007", "current")],
)
async def test_the_state_follows_the_revisions(store: Store, revision: str, oldest: str, state: str) -> None:
    """An older schema is behind. One that this program does not know is newer if it may use it, or else ahead."""
    await set_revisions(store, revision, oldest)
    assert await schema_state(store) == SchemaState(state, revision, HEAD)  # type: ignore[arg-type]


async def test_a_schema_that_is_ahead_is_not_migrated(store: Store) -> None:
    """An older program refuses a schema that would break it and says what to do."""
    await set_revisions(store, "9999", "9999")
    with pytest.raises(StoreUnavailable, match=r"9999.*run the newer program"):
        await migrate(store)


async def test_a_program_of_the_release_before_uses_a_newer_schema(store: Store) -> None:
    """A schema that only adds to the one that a program knows can be used by it, and stays as it is."""
    await set_revisions(store, "9999", HEAD)
    await prepare_store(store)
    await require_store(store)
    async with present(store):
        assert await migrate(store) == "9999"


async def test_a_process_does_not_begin_on_a_schema_that_breaks_it(store: Store) -> None:
    """A migration that is made after a process has looked at the schema is noticed when the process registers."""
    await set_revisions(store, "9999", "9999")
    with pytest.raises(StoreUnavailable, match=r"9999.*run the newer program"):
        async with present(store):
            pass
    assert await beats(store) == {}


@pytest.mark.parametrize("revision", ["0003", "0006"])
async def test_up_to_0007_both_revisions_are_the_same(empty: Store, url: str, revision: str) -> None:
    """A program up to schema 0007 starts only if it reads its own revision; a later migration leaves 0007 there."""
    await empty.upgrade(revision)
    async with aside(url) as other:
        assert await other.rows("SELECT version_num FROM alembic_version") == [(revision,)]
        await migrate(empty)
        assert await other.rows("SELECT version_num FROM alembic_version") == [("0007",)]
        assert await other.rows("SELECT version_num FROM schema_revision") == [(HEAD,)]


async def test_a_migration_that_breaks_a_running_process_is_refused(empty: Store, url: str) -> None:
    """A process of schema 0004 keeps the store at 0004 while it runs, and is named; then the store is migrated."""
    await empty.upgrade("0004")
    async with process_of_0004(empty, url) as name:
        with pytest.raises(StoreUnavailable, match=rf"would break .*{name} \(schema 0004.*Nothing was changed"):
            await migrate(empty)
        assert (await schema_state(empty)).revision == "0004"
    assert await migrate(empty) == HEAD


async def test_processes_that_would_break_are_named(store: Store, url: str) -> None:
    """Name, version, schema, host and pid of those that are too old; others, and dead ones, are left out."""
    await run_sql(store, "INSERT INTO processes (name) VALUES ('proc_dead')")
    async with present(store) as new, present(store) as old:
        await run_sql(store, f"UPDATE processes SET revision = NULL, host = 'web1' WHERE name = '{old.name}'")
        with pytest.raises(StoreUnavailable) as refused:
            await refuse(store, url, HEAD)
        assert f"{old.name} (version {version('cadenza')}, schema 0007, host web1, pid {os.getpid()})" in str(
            refused.value
        )
        assert new.name not in str(refused.value)
        assert "proc_dead" not in str(refused.value)
        await refuse(store, url, "0007")


@asynccontextmanager
async def process_of_0004(store: Store, url: str) -> AsyncIterator[str]:
    """A living process of schema 0004, as far as the store shows it, and how it is named."""
    if store.path:
        lock = ProcessLocks(store.path).lock("proc_a")
        assert lock is not None
        yield "proc_a"
        ProcessLocks(store.path).unlock("proc_a", lock)
        return
    async with aside(url) as other:
        await other.execute("SELECT pg_advisory_lock(4711)")
        yield "session [0-9]+"


async def refuse(store: Store, url: str, needed: str) -> None:
    """What a migration does before it breaks the programs that are older than `needed`."""
    if store.path:
        with contextlib.closing(sqlite3.connect(store.path)) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("SELECT * FROM processes")]
        live_processes.refuse_older(live_processes.find_locked(store.path, rows), HEAD, needed)
        return
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with engine.begin() as connection:
            await refuse_live(connection, HEAD, needed)
    finally:
        await engine.dispose()


async def set_revisions(store: Store, revision: str, oldest: str) -> None:
    """That of the schema, and the oldest program that may use it."""
    await run_sql(
        store,
        f"UPDATE schema_revision SET version_num = '{revision}'",
        f"UPDATE alembic_version SET version_num = '{oldest}'",
    )


async def test_a_store_of_every_revision_keeps_its_rows(empty: Store) -> None:
    """Rows written at revisions 0001 and 0003 survive: the ledger is sound, guarded, and can be used."""
    await empty.upgrade("0001")
    await run_sql(empty, *FUNDED_AT_0001)
    await empty.upgrade("0003")
    await fill_at_0003(empty)
    await migrate(empty)
    assert (await money(empty), await findings(empty)) == ((DOLLAR_NANO - 1210, 2500), [])
    assert [(row.completion_id, row.request_id) for row in await rows_of(empty, usage)] == [("r1", "")]
    assert {(row.completion_id, row.request_id, row.state) for row in await rows_of(empty, holds)} == {
        ("r1", "", "settled"),
        ("r2", "", "open"),
    }
    assert [(row.completion_id, row.request_id) for row in await rows_of(empty, idempotency)] == [("r1", "req-r1")]
    assert sorted((row.id, row.completion_id) for row in await rows_of(empty, entries)) == [(1, None), (2, "r1")]


async def test_what_was_granted_before_is_computed_from_the_entries(empty: Store) -> None:
    """Granted credit was spent first; payments, refunds of them and disputes moved paid credit."""
    await empty.upgrade("0011")
    histories: dict[str, list[tuple[str, int, str | None]]] = {
        "a": [("grant", 50, None), ("grant", 100, "pay_1"), ("charge", -80, "r1"), ("grant", 20, "vch_1")],
        "b": [
            ("grant", 100, "pay_2"),
            ("grant", 10, "reference:1"),
            ("correction", -30, "evt_1"),
            ("charge", -4, "r2"),
        ],
        "c": [("grant", 100, "pay_3"), ("charge", -60, "r3"), ("grant", 5, "reference:2"), ("correction", -44, "dp_1")],
        "d": [],
    }
    for name, history in histories.items():
        balance_nano = sum(amount_nano for _, amount_nano, _ in history)
        await run_sql(
            empty,
            "INSERT INTO accounts (id, email, password_hash, created_at, balance_nano)"
            f" VALUES ('acct_{name}', '{name}@example.org', '', 0, {balance_nano})",
        )
        for kind, amount_nano, cause in history:
            column = "completion_id" if kind == "charge" else "source"
            await run_sql(
                empty,
                f"INSERT INTO entries (account_id, kind, amount_nano, note, created_at, {column})"
                f" VALUES ('acct_{name}', '{kind}', {amount_nano}, '', 0, {repr(cause) if cause else 'NULL'})",
            )
    await migrate(empty)
    found = {
        row.id: (row.balance_nano, row.granted_nano, row.granted_before_nano) for row in await rows_of(empty, accounts)
    }
    assert found == {"acct_a": (90, 20, 20), "acct_b": (76, 6, 6), "acct_c": (1, 1, 1), "acct_d": (0, 0, 0)}


async def test_a_migrated_store_is_guarded_and_can_be_used(empty: Store) -> None:
    """After the migration of an old store, triggers, indexes and CHECKs hold, and old and new requests are settled."""
    await empty.upgrade("0003")
    await run_sql(empty, *FUNDED_AT_0001)
    await fill_at_0003(empty)
    await migrate(empty)
    second_charge = (
        "INSERT INTO entries SELECT 9, account_id, kind, 0, completion_id, note, 0, NULL, NULL, NULL, NULL "
        "FROM entries WHERE id = 2"
    )
    charge_without_id = "INSERT INTO entries VALUES (9, 'acct_a', 'charge', 0, NULL, '', 0, NULL, NULL, NULL, NULL)"
    for refused in ("UPDATE entries SET amount_nano = 2 * amount_nano", second_charge, charge_without_id):
        with pytest.raises(StoreRefused):
            await run_sql(empty, refused)
    assert await take(empty, make_hold("r3", key=b"k" * 32)) == Repeated("r1", "req-r1")
    assert len(await empty.transact(lambda tx: sweeps.end_old_holds(tx, "proc_a", NOW_MS))) == 1
    assert isinstance(await take(empty, make_hold("r4")), Held)
    assert await finish(empty, make_hold("r4"), Usage(100, 50)) == Ended(2500)
    assert (await money(empty), await findings(empty)) == ((DOLLAR_NANO - 2 * 1210 - 2500, 0), [])


async def test_schema_and_migrations_agree(store: Store, url: str) -> None:
    """Alembic finds no difference between schema.py and a migrated store."""
    assert (await schema_state(store)).state == "current"
    assert await inspected(url, differences) == []


async def test_constraints_agree_with_the_schema(store: Store, url: str, make_url: Callable[[], str]) -> None:
    """What schema.py creates and what the migrations create is the same, including checks and defaults."""
    assert (await schema_state(store)).state == "current"

    def create(connection: Connection) -> dict[str, list[str]]:
        for index in itertools.chain.from_iterable(table.indexes for table in metadata.tables.values()):
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
        metadata.create_all(connection)
        return reflect(connection)

    assert await inspected(url, reflect) == await inspected(make_url(), create)


def test_the_known_revisions_are_the_files() -> None:
    """REVISIONS lists the files of the migrations, oldest first, in one line without branches."""
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    newest_first = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(newest_first)) == REVISIONS


async def fill_at_0003(store: Store) -> None:
    """Add a key, one settled request with its idempotency key, and one open request."""
    values = {"digest": b"k" * 32, "now": NOW_MS}
    await store.transact(lambda tx: tx.change(ADD_KEY, values))
    yes, no = ("1", "0") if isinstance(store, SqliteStore) else ("true", "false")
    await run_sql(store, *(sql.replace(":yes", yes).replace(":no", no) for sql in USED_AT_0003))
    await store.transact(lambda tx: tx.change(ADD_IDEMPOTENCY, values))


async def inspected(url: str, look: Callable[[Connection], T]) -> T:
    """Run a function on a connection of SQLAlchemy, in one transaction."""
    if url.startswith("sqlite"):
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                return look(connection)
        finally:
            engine.dispose()
    async_engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with async_engine.begin() as async_connection:
            return await async_connection.run_sync(look)
    finally:
        await async_engine.dispose()


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    found = list(compare_metadata(context, metadata))
    return [one for one in found if not (one[0] == "remove_table" and one[1].name == REVISION_TABLE)]


def reflect(connection: Connection) -> dict[str, list[str]]:
    found = inspect(connection)
    return {
        table: sorted(
            readable(part)
            for parts in (
                found.get_columns(table),
                found.get_indexes(table),
                found.get_foreign_keys(table),
                found.get_check_constraints(table),
                found.get_unique_constraints(table),
                [found.get_pk_constraint(table)],
            )
            for part in parts
        )
        for table in metadata.tables
    }


def readable(part: Mapping[str, Any]) -> str:
    """Write a part as text. The WHERE of a partial index is an expression, which compares only by its text."""
    options = {name: str(option) for name, option in part.get("dialect_options", {}).items()}
    return str({**part, "dialect_options": options})
