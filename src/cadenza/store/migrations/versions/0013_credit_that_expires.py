"""Granted credit that expires: what is left of each grant of an account that has such credit, and vouchers of it.

Expand only: a process of the release before gives no credit that expires, and takes none away.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "credit_lots",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("left_nano", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_credit_lots"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_credit_lots_account_id"),
        sa.CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="ck_credit_lots_left_is_part_of_amount"),
    )
    is_open = sa.text("ended_at IS NULL")
    for name in ("account_id", "expires_at"):
        op.create_index(f"ix_credit_lots_{name}", "credit_lots", [name], sqlite_where=is_open, postgresql_where=is_open)
    op.add_column("vouchers", sa.Column("credit_days", sa.Integer))
