"""Debts of accounts, and references of idempotent commands.

Expand only: a process of the release before goes on serving. It frees credit without paying a debt; the next move of
this account by a process of this release pays it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("debt_nano", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("entries", sa.Column("debt_id", sa.BigInteger))
    op.create_table(
        "debts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("left_nano", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_debts"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_debts_account_id"),
        sa.CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="ck_debts_left_is_part_of_amount"),
    )
    op.create_index("ix_debts_account_id", "debts", ["account_id", "id"])
    op.create_index("uq_debts_source", "debts", ["source"], unique=True)
    op.create_table(
        "command_references",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("arguments_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_command_references"),
    )
