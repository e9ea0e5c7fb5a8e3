"""Details of requests that were refused, failed, retried, slow or grounded: for operators, for a few days.

Expand only: a process of the release before writes none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "request_details",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("completion_id", sa.Text),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("version", sa.Integer),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("fault", sa.Text, nullable=False),
        sa.Column("is_charged", sa.Boolean, nullable=False),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("first_byte_ms", sa.BigInteger),
        sa.Column("held_ms", sa.BigInteger),
        sa.Column("answered_ms", sa.BigInteger),
        sa.Column("settle_ms", sa.BigInteger),
        sa.Column("steps", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_request_details"),
    )
    for column in ("request_id", "completion_id", "account_id", "ended_at"):
        op.create_index(f"ix_request_details_{column}", "request_details", [column])
