"""Alembic's entry point: runs the migrations on the connection, and in the transaction, that `upgrade` passes in."""

from alembic import context

from cadenza.store.store import REVISION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=REVISION_TABLE)
context.run_migrations()
