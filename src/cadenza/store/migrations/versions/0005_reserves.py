"""Reserves of credit for each serving process, marks of what long replies delivered, and a number for every change.

Processes of the release before go on taking holds, and those of a later release do not settle them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
breaks_before = "0005"


def upgrade() -> None:
    create_processes()
    create_reserves()
    create_marks()
    op.add_column("idempotency", sa.Column("process", sa.Text))
    op.create_index("ix_idempotency_process", "idempotency", ["process"])
    op.execute("INSERT INTO epochs (name, number) VALUES ('changes', 0)")


def create_processes() -> None:
    op.create_table(
        "processes",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("seen", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("name", name="pk_processes"),
    )


def create_reserves() -> None:
    op.create_table(
        "reserves",
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("has_spare", sa.Boolean, nullable=False),
        sa.Column("is_asked", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("account_id", "process", name="pk_reserves"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_reserves_account_id"),
        sa.ForeignKeyConstraint(["process"], ["processes.name"], name="fk_reserves_process"),
        sa.CheckConstraint("amount_nano >= 0", name="ck_reserves_amount_is_not_negative"),
    )
    op.create_index("ix_reserves_process", "reserves", ["process"])


def create_marks() -> None:
    op.create_table(
        "marks",
        sa.Column("completion_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("delivered_tokens", sa.Integer, nullable=False),
        sa.Column("input_nano", sa.BigInteger, nullable=False),
        sa.Column("output_nano", sa.BigInteger, nullable=False),
        sa.Column("cached_input_nano", sa.BigInteger),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("completion_id", name="pk_marks"),
        sa.ForeignKeyConstraint(["process"], ["processes.name"], name="fk_marks_process"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_marks_account_id"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_marks_key_id"),
        sa.CheckConstraint("prompt_tokens >= 0 AND delivered_tokens > 0", name="ck_marks_tokens_are_counted"),
    )
    op.create_index("ix_marks_process", "marks", ["process"])
