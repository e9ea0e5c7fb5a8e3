"""Runs the migrations with Alembic. Imported only when there is something to migrate: Alembic is slow to import.

A migration that only adds runs beside processes of the release before. One that breaks them says so: `breaks_before` in
its module is the first schema whose programs can still use the store. It is refused while an older program runs on the
store, and no older program starts on the store afterwards.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from cadenza.store import live_processes
from cadenza.store.store import REVISION_TABLE

LOCK_TURN_S = 60  # how long a migration waits for another one to end
LOCK_TABLE_S = 10  # how long it waits for a table, while other transactions queue behind it
REVISION = text(f"SELECT revision FROM {REVISION_TABLE}")  # noqa: S608 our own name
REACHED = text(
    f"UPDATE {REVISION_TABLE} SET revision = :revision,"  # noqa: S608 our own name
    " oldest_program = CASE WHEN oldest_program < :needed THEN :needed ELSE oldest_program END"
)


class Steps(msgspec.Struct, frozen=True):
    """The migrations from the revision that was found, which is empty if there is no schema, oldest first."""

    found: str
    scripts: list[Script]

    @property
    def needed(self) -> str:
        """The first schema whose programs can use the new one. Empty if all can, or if there is none yet."""
        return max((getattr(script.module, "breaks_before", "") for script in self.scripts if self.found), default="")


def find_steps(connection: Connection) -> Steps:
    has_schema = inspect(connection).has_table(REVISION_TABLE)
    found = str(connection.execute(REVISION).scalar_one()) if has_schema else ""
    scripts = ScriptDirectory(str(Path(__file__).parent)).iterate_revisions("head", found or "base")
    return Steps(found, list(scripts)[::-1])


def upgrade(connection: Connection, steps: Steps) -> None:
    """Migrate inside the transaction that is open on the connection."""
    with Operations.context(MigrationContext.configure(connection)):
        for script in steps.scripts:
            script.module.upgrade()
            connection.execute(REACHED, {"revision": script.revision, "needed": steps.needed})


def upgrade_sqlite(connect: Callable[[], sqlite3.Connection], back_up: Callable[[str], None], database: Path) -> None:
    """Check, back up and migrate while one transaction holds the write lock. Errors are the driver's own.

    `back_up` gets the revision of the schema that is about to change.
    """
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            steps = find_steps(connection)
            if steps.needed:
                live = live_processes.find_locked(database, _read_processes(connection))
                live_processes.refuse_older(live, steps.needed)
            if steps.found and steps.scripts:
                back_up(steps.found)
            upgrade(connection, steps)
    except DBAPIError as error:
        raise error.orig or error from None


async def upgrade_postgres(connect: Callable[[], Awaitable[Any]], lock: int) -> None:
    """Check and migrate in one transaction on a connection of its own, under an advisory lock.

    Errors are the driver's own.
    """
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TURN_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({lock})"))
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TABLE_S}s'"))
            steps = await connection.run_sync(find_steps)
            if steps.needed:
                await refuse_live(connection, steps.needed)
            await connection.run_sync(upgrade, steps)
    except DBAPIError as error:
        raise (error.orig and error.orig.__cause__) or error from None


async def refuse_live(connection: AsyncConnection, needed: str) -> None:
    """StoreUnavailable if a program older than `needed` runs on the store. None can register before the commit."""

    async def read() -> list[live_processes.Fields]:
        rows = await connection.run_sync(_read_processes)
        return [row for row in rows if live_processes.is_older(row, needed)]

    lock = text("LOCK TABLE processes IN SHARE MODE")
    live_processes.refuse_older(await live_processes.find_live(read, lambda: connection.execute(lock)), needed)


def _read_processes(connection: Connection) -> list[live_processes.Fields]:
    return [dict(row) for row in connection.execute(text("SELECT * FROM processes")).mappings()]
