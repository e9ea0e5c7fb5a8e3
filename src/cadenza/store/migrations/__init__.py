"""Runs the migrations with Alembic. Imported only when there is something to migrate: Alembic is slow to import."""

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

LOCK_TURN_S = 60  # how long a migration waits for another one
LOCK_TABLE_S = 10  # how long it waits for a table, while those who want the table next wait behind it


def upgrade(connection: Connection, revision: str) -> None:
    """Migrate inside the transaction that is open on the connection."""
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def upgrade_sqlite(connect: Callable[[], sqlite3.Connection], revision: str, back_up: Callable[[], None]) -> None:
    """Back up and migrate while one transaction holds the write lock. Errors are the driver's own."""
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            back_up()
            upgrade(connection, revision)
    except DBAPIError as error:
        raise error.orig or error from None


async def upgrade_postgres(connect: Callable[[], Awaitable[Any]], revision: str, lock: int) -> None:
    """Migrate in one transaction on a connection of its own, under an advisory lock. Errors are the driver's own."""
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TURN_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({lock})"))
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TABLE_S}s'"))
            await connection.run_sync(upgrade, revision)
    except DBAPIError as error:
        raise (error.orig and error.orig.__cause__) or error from None
