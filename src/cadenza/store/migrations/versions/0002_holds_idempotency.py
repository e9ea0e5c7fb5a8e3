"""Holds on an account's credit, and the idempotency keys that were seen."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "holds",
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("delivered_tokens", sa.Integer, nullable=False),
        sa.Column("input_nano", sa.BigInteger, nullable=False),
        sa.Column("output_nano", sa.BigInteger, nullable=False),
        sa.Column("cached_input_nano", sa.BigInteger),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("request_id", name="pk_holds"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_holds_account_id"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_holds_key_id"),
        sa.CheckConstraint("state IN ('open', 'settled', 'released')", name="ck_holds_state_is_known"),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ck_holds_ended_has_a_time"),
        sa.CheckConstraint("amount_nano >= 0", name="ck_holds_amount_is_not_negative"),
        sa.CheckConstraint("prompt_tokens >= 0 AND delivered_tokens >= 0", name="ck_holds_tokens_are_not_negative"),
    )
    is_open = sa.text("state = 'open'")
    op.create_index("ix_holds_open", "holds", ["account_id", "owner"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_table(
        "idempotency",
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("shown_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "digest", name="pk_idempotency"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_idempotency_account_id"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])
