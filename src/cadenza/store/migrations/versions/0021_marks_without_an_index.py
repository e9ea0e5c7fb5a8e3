"""Marks have no index by process: the end of every long stream changed it, and only sweeps of dead processes used it.

There is one mark for each long stream that runs, so a sweep can read them all.
"""

from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.drop_index("ix_marks_process", "marks")
