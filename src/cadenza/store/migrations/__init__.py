"""Brings a database to the newest schema with Alembic, inside the transaction and the lock of its caller.

Imported only where there is something to migrate, for Alembic is slow to load.
"""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
