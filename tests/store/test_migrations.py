"""The migrations: from nothing to head, repeatably, by several at once, and to the same tables as schema.py."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from cadenza.store.database import REVISIONS, Database, SchemaState, StoreUnavailable, migrate, schema_state
from cadenza.store.schema import metadata
from tests.store.processes import run_at_once

HEAD = REVISIONS[-1]


async def test_an_empty_database_is_migrated_to_head(empty: Database) -> None:
    """A database without tables says so, and is current after one migration."""
    before = await schema_state(empty)
    reached = await migrate(empty)
    assert (before, reached) == (SchemaState("empty", None, HEAD), HEAD)
    assert await schema_state(empty) == SchemaState("current", HEAD, HEAD)


async def test_migrating_twice_changes_nothing(db: Database) -> None:
    """A second migration finds nothing to do and returns the same revision."""
    async with db.read() as conn:
        before = await conn.run_sync(reflect)
    assert await migrate(db) == HEAD
    async with db.read() as conn:
        assert await conn.run_sync(reflect) == before


async def test_processes_that_migrate_at_once_take_turns(empty: Database, url: str) -> None:
    """Three processes that start together on an empty database all succeed."""
    assert await run_at_once(*[("migrate", url)] * 3) == [HEAD] * 3
    assert (await schema_state(empty)).state == "current"


async def test_a_failed_migration_leaves_nothing_behind(empty: Database) -> None:
    """A step that fails half-way is rolled back with everything before it."""
    async with empty.write() as conn:
        await conn.execute(text("CREATE TABLE usage (request_id TEXT)"))
    with pytest.raises(Exception, match="usage"):
        await migrate(empty)
    async with empty.read() as conn:
        assert await conn.run_sync(lambda sync: inspect(sync).get_table_names()) == ["usage"]


@pytest.mark.parametrize(("revision", "state"), [("9999", "ahead"), (HEAD, "current")])
async def test_the_state_follows_the_revision(db: Database, revision: str, state: str) -> None:
    """A revision that this program does not know is ahead of it."""
    await set_revision(db, revision)
    assert await schema_state(db) == SchemaState(state, revision, HEAD)  # type: ignore[arg-type]


async def test_a_schema_that_is_ahead_is_not_migrated(db: Database) -> None:
    """An older program refuses a newer schema and says what to do."""
    await set_revision(db, "9999")
    with pytest.raises(StoreUnavailable, match=r"9999.*run the newer program"):
        await migrate(db)


async def test_schema_and_migrations_agree(db: Database) -> None:
    """Alembic finds no difference between schema.py and a migrated database."""
    async with db.read() as conn:
        assert await conn.run_sync(differences) == []


async def test_every_constraint_is_the_same_both_ways(db: Database, make_url: Callable[[], str]) -> None:
    """What schema.py creates and what the migrations create reflect alike, checks and defaults included."""
    created = Database(make_url())
    try:
        async with created.write() as conn:
            await conn.run_sync(metadata.create_all)
            expected = await conn.run_sync(reflect)
    finally:
        await created.close()
    async with db.read() as conn:
        assert await conn.run_sync(reflect) == expected


def test_the_known_revisions_are_the_files() -> None:
    """REVISIONS lists the migrations' files, oldest first, in one line without branches."""
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    newest_first = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(newest_first)) == REVISIONS


async def set_revision(db: Database, revision: str) -> None:
    async with db.write() as conn:
        await conn.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))


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
    """The WHERE of a partial index is an expression, which compares by its text only."""
    options = {name: str(option) for name, option in part.get("dialect_options", {}).items()}
    return str({**part, "dialect_options": options})
