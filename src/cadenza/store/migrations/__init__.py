"""Runs the migrations with Alembic. Imported only when there is something to migrate: Alembic is slow to import.

A migration that only adds runs beside processes of the release before. One that breaks them says so: `breaks_before` in
its module is the first schema whose programs can still use the store. It is refused while an older program runs on the
store, and no older program starts on the store afterwards.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, TextClause, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from cadenza.store import live_processes
from cadenza.store.store import REVISION_TABLE

LOCK_TURN_S = 60  # how long a migration waits for another one to end
LOCK_TABLE_S = 10  # how long it waits for a table, while other transactions queue behind it
LAST_EXACT = "0007"  # programs up to this one start only if `alembic_version` is their own revision
FIRST_WITH_PROCESSES = "0005"
PROCESSES = text("SELECT * FROM processes")
ADVISORY = text(
    "SELECT 'session ' || a.pid AS name, host(a.client_addr) AS host"
    " FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid()"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def upgrade(connection: Connection, revision: str) -> None:
    """Migrate inside the transaction that is open on the connection."""
    _split_revisions(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    _write_oldest_program(connection, revision)


def upgrade_sqlite(
    connect: Callable[[], sqlite3.Connection], revision: str, back_up: Callable[[str], None], database: Path
) -> None:
    """Check, back up and migrate while one transaction holds the write lock. Errors are the driver's own.

    `back_up` gets the revision of the schema, which is empty if there is none.
    """
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            found, needed = pending(connection, revision)
            if needed:
                rows = _rows(connection, PROCESSES) if found >= FIRST_WITH_PROCESSES else []
                live_processes.refuse_older(live_processes.find_locked(database, rows), found, needed)
            back_up(found)
            upgrade(connection, revision)
    except DBAPIError as error:
        raise error.orig or error from None


async def upgrade_postgres(connect: Callable[[], Awaitable[Any]], revision: str, lock: int) -> None:
    """Check and migrate in one transaction on a connection of its own, under an advisory lock.

    Errors are the driver's own.
    """
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TURN_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({lock})"))
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TABLE_S}s'"))
            found, needed = await connection.run_sync(pending, revision)
            if needed:
                await refuse_live(connection, found, needed)
            await connection.run_sync(upgrade, revision)
    except DBAPIError as error:
        raise (error.orig and error.orig.__cause__) or error from None


async def refuse_live(connection: AsyncConnection, found: str, needed: str) -> None:
    """StoreUnavailable if a program older than `needed` runs on the store. None can register before the commit."""

    async def read() -> list[live_processes.Fields]:
        rows = await connection.run_sync(_rows, PROCESSES)
        return [row for row in rows if live_processes.known_revision(row, found) < needed]

    if found < FIRST_WITH_PROCESSES:
        live = await connection.run_sync(_rows, ADVISORY)
    else:
        lock = text("LOCK TABLE processes IN SHARE MODE")
        live = await live_processes.find_live(read, lambda: connection.execute(lock))
    live_processes.refuse_older(live, found, needed)


def pending(connection: Connection, revision: str) -> tuple[str, str | None]:
    """The revision of the schema, and the first one whose programs can use the new schema; None if all can."""
    found = _revision(connection)
    if found is None:
        return "", None
    scripts = ScriptDirectory.from_config(_config()).iterate_revisions(revision, found)
    return found, max(filter(None, (getattr(script.module, "breaks_before", None) for script in scripts)), default=None)


def _split_revisions(connection: Connection) -> None:
    """Up to 0007 `alembic_version` had the revision of the schema. Alembic keeps it in a table of its own now."""
    found = _revision(connection)
    if found is not None and not inspect(connection).has_table(REVISION_TABLE):
        _make_table(connection, REVISION_TABLE, found)


def _write_oldest_program(connection: Connection, revision: str) -> None:
    """Say which programs may use the schema."""
    applied = list(ScriptDirectory.from_config(_config()).walk_revisions("base", revision))
    newest = applied[0].revision
    breaks = (getattr(script.module, "breaks_before", None) for script in applied)
    oldest = newest if newest <= LAST_EXACT else max(LAST_EXACT, *filter(None, breaks))
    if inspect(connection).has_table("alembic_version"):
        connection.execute(text("UPDATE alembic_version SET version_num = :oldest"), {"oldest": oldest})
    else:
        _make_table(connection, "alembic_version", oldest)


def _make_table(connection: Connection, name: str, revision: str) -> None:
    key = f"CONSTRAINT {name}_pkc PRIMARY KEY (version_num)"
    connection.execute(text(f"CREATE TABLE {name} (version_num VARCHAR(32) NOT NULL, {key})"))
    connection.execute(text(f"INSERT INTO {name} VALUES (:revision)"), {"revision": revision})  # noqa: S608 our own name


def _revision(connection: Connection) -> str | None:
    tables = inspect(connection)
    for table in (REVISION_TABLE, "alembic_version"):
        if tables.has_table(table):
            return connection.execute(text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 our own name
    return None


def _rows(connection: Connection, query: TextClause) -> list[live_processes.Fields]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    return config
