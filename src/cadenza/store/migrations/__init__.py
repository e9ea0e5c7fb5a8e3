"""Runs the migrations with Alembic. Imported only when there is something to migrate: Alembic is slow to import."""

import sqlite3
from collections.abc import Callable

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool


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
