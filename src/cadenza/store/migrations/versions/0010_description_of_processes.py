"""The version, schema, host and process id of each serving process.

A migration that breaks older programs reads them, and is refused while such a program runs.

Expand only: a process of the release before leaves the columns empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
breaks_before = None


def upgrade() -> None:
    for column in (
        sa.Column("version", sa.Text),
        sa.Column("revision", sa.Text),
        sa.Column("host", sa.Text),
        sa.Column("pid", sa.Integer),
    ):
        op.add_column("processes", column)
