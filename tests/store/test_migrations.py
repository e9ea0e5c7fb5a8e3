"""The migrations: from nothing to the newest schema, by processes at once, and the next one beside a process."""

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version as program_version
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from cadenza.control.store.prepare import prepare_store, require_store
from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route, Usage
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.store.migrate import FIRST, SchemaState, migrate, schema_state
from cadenza.store.statements import Statement
from cadenza.store.store import REVISION_TABLE, Store, StoreUnavailable
from cadenza.store.tables import audit_events, class_versions, epochs
from tests.cli.program import Done, run
from tests.migrated import with_store
from tests.next_release import HEAD, NEXT, next_release
from tests.store.aside import aside
from tests.store.moves import finish, make_hold, money, take
from tests.store.presences import beats, present
from tests.store.processes import run_at_once
from tests.store.rows import DOLLAR_NANO, run_sql

T = TypeVar("T")
RELEASE = Path(__file__).with_name("release_0_1_0")  # what that release made of an empty database
SQLITE_TRIGGERS = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
POSTGRES_TRIGGERS = """
SELECT tgname, pg_get_triggerdef(pg_trigger.oid), prosrc FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE NOT tgisinternal UNION ALL SELECT proname, prosrc, '' FROM pg_proc WHERE proname = 'date_entry'"""
FROM_BEFORE = r"no release of Cadenza made.*Nothing was changed\. Name a new file or an empty database"


async def test_an_empty_store_is_migrated_to_head(empty: Store) -> None:
    """A store without tables is `empty`, and `current` after one migration."""
    before = await schema_state(empty)
    reached = await migrate(empty)
    assert (before, reached) == (SchemaState("empty", None, HEAD), HEAD)
    assert await schema_state(empty) == SchemaState("current", HEAD, HEAD)


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


@pytest.mark.parametrize(("revision", "oldest", "state"), [("9999", "9998", "ahead"), ("9999", HEAD, "newer")])
async def test_the_state_follows_the_revisions(store: Store, revision: str, oldest: str, state: str) -> None:
    """A schema that this program does not know is newer if the program may use it, or else ahead."""
    await set_revisions(store, revision, oldest)
    assert await schema_state(store) == SchemaState(state, revision, HEAD)  # type: ignore[arg-type]


async def test_a_schema_that_is_ahead_is_not_migrated(store: Store) -> None:
    """An older program refuses a schema that would break it and says what to do."""
    await set_revisions(store, "9999", "9999")
    with pytest.raises(StoreUnavailable, match=r"9999.*run the newer program"):
        await migrate(store)


async def test_an_older_program_uses_a_newer_schema(store: Store) -> None:
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


@pytest.mark.parametrize("use", [migrate, prepare_store, require_store])
async def test_a_store_from_before_the_first_release_is_refused(
    empty: Store, url: str, use: Callable[[Store], Any]
) -> None:
    """Tables without the revision of a release are left as they are, and the sentence says what to do."""
    async with aside(url) as other:
        await other.execute("CREATE TABLE accounts (id TEXT)")
        await other.execute("CREATE TABLE alembic_version (version_num TEXT)")
        await other.execute("INSERT INTO alembic_version VALUES ('0001')")
    before = await inspected(url, lambda connection: inspect(connection).get_table_names())
    with pytest.raises(StoreUnavailable, match=FROM_BEFORE):
        await use(empty)
    assert await inspected(url, lambda connection: inspect(connection).get_table_names()) == before


async def test_the_next_migration_is_made_beside_a_process(rich: Store, url: str, tmp_path: Path) -> None:
    """The next release adds to the schema. This program goes on, keeps its rows, and can be started again."""
    async with present(rich):
        assert isinstance(await take(rich, make_hold()), HeldCredit)
        done = await migrate_to_next(tmp_path, url)
        assert done.returncode == 0, done.stderr
        assert await finish(rich, make_hold(), Usage(100, 7)) == Ended(1210)
    assert await schema_state(rich) == SchemaState("newer", NEXT, HEAD)
    await require_store(rich)
    async with present(rich):
        assert await migrate(rich) == NEXT
    assert await money(rich) == (DOLLAR_NANO - 1210, 0)


async def test_a_migration_that_breaks_a_running_process_is_refused(store: Store, url: str, tmp_path: Path) -> None:
    """It is named, with version, schema, host and pid, and nothing changes. Once it has ended, no such one starts."""
    await run_sql(
        store, "INSERT INTO processes (name, version, revision, host, pid) VALUES ('proc_dead', '', '', '', 1)"
    )
    async with present(store) as process:
        refused = await migrate_to_next(tmp_path, url, breaks=True)
        assert (refused.returncode, "Nothing was changed" in refused.stderr) == (1, True), refused
        assert f"{process.name} (version {program_version('cadenza')}, schema {HEAD}, host " in refused.stderr
        assert "proc_dead" not in refused.stderr
        assert (await schema_state(store)).state == "current"
    done = await migrate_to_next(tmp_path, url, breaks=True)
    assert done.returncode == 0, done.stderr
    assert (await schema_state(store)).state == "ahead"


async def test_a_canary_ends_at_the_upgrade(store: Store) -> None:
    """The version from before serves every account, the audit log says so, and processes read the class again."""
    version = ClassVersion(class_id="forte", routes=(Route("acme", "large", 1000, 100),), character="")
    await store.transact(lambda tx: class_versions.add_state(tx, class_versions.add(tx, version), 1))
    await run_sql(store, "UPDATE class_states SET candidate = 2, share = 5, canary = '{}'")
    before = await epochs.current(store, epochs.CLASSES)
    module = import_module("cadenza.store.migrations.versions.0003_no_canaries")
    for _ in range(2):  # it finds nothing to do when it is run again
        await store.transact(lambda tx: module.upgrade("", lambda sql: tx.change(Statement(text(sql)), {})))
    row = await store.row(Statement(text("SELECT version, candidate, share, canary, revision FROM class_states")), {})
    assert row
    assert tuple(row) == (1, None, 0, None, 2)
    assert await epochs.current(store, epochs.CLASSES) == before + 1
    [event] = await audit_events.list_newest(store)
    assert (event.actor, event.event, event.subject) == ("migration", "class.rollback", "forte")
    assert event.detail == "the canary of version 2 ended, version 1 stays: there are no canaries now"


async def migrate_to_next(folder: Path, url: str, *, breaks: bool = False) -> Done:
    """Run `cadenza migrate` of the next release on the store."""
    (folder / "cadenza.toml").write_text(f'[store]\nurl = "{url}"\n')
    release = folder / "next"
    variables = {"PYTHONPATH": str(release)} if release.exists() else next_release(release, breaks=breaks)
    return await asyncio.to_thread(run, folder, "migrate", **variables)


async def set_revisions(store: Store, revision: str, oldest: str) -> None:
    """That of the schema, and the oldest program that may use it."""
    await run_sql(store, f"UPDATE {REVISION_TABLE} SET revision = '{revision}', oldest_program = '{oldest}'")


async def test_a_store_of_the_first_release_becomes_as_a_new_one(
    empty: Store, url: str, make_url: Callable[[], str]
) -> None:
    """Once migrated, it has what a new store has: tables, types, indexes, checks, defaults, triggers."""
    engine = "sqlite" if url.startswith("sqlite") else "postgresql"
    async with aside(url) as release:
        for statement in (RELEASE / f"{engine}.sql").read_text().split("\n\n"):
            await release.execute(statement)
    assert await schema_state(empty) == SchemaState("behind", FIRST, HEAD)
    await migrate(empty)
    new = make_url()
    assert await with_store(new, migrate) == HEAD
    assert await inspected(url, reflect) == await inspected(new, reflect)
    assert await refused_changes(url) == await refused_changes(new)


async def refused_changes(url: str) -> set[tuple[str, ...]]:
    """The triggers and their functions, as the database has them."""
    query = SQLITE_TRIGGERS if url.startswith("sqlite") else POSTGRES_TRIGGERS
    async with aside(url) as database:
        return {tuple(" ".join(str(one).split()) for one in row) for row in await database.rows(query)}


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
        for table in sorted({*found.get_table_names()} - {REVISION_TABLE})
    }


def readable(part: Mapping[str, Any]) -> str:
    """Write a part as text. The WHERE of a partial index is an expression, which compares only by its text."""
    options = {name: str(option) for name, option in part.get("dialect_options", {}).items()}
    return str({**part, "dialect_options": options})
