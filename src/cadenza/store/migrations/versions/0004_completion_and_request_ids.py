"""Plain names for the two ids of a request: the completion id, and the x-request-id beside it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for table in ("holds", "entries", "usage", "idempotency"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN request_id TO completion_id")
    op.execute("ALTER TABLE idempotency RENAME COLUMN shown_id TO request_id")
    for table in ("holds", "usage"):
        op.add_column(table, sa.Column("request_id", sa.Text, nullable=False, server_default=sa.text("''")))
