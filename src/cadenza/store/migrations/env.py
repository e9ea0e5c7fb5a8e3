"""Alembic's entry: runs the steps on the connection that `upgrade` hands over, in the transaction open on it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
