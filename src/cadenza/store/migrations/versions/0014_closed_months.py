"""Closed months: their sums, their hash, and the balance of each account at their end. An index of corrections.

Expand only: a process of the release before goes on serving. An entry that it writes after the month of its time was
closed is dated at the first moment that is still open, by a trigger that the close makes (store/month_end.py).
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

POSTGRES_DATE = """
CREATE FUNCTION date_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.created_at := TG_ARGV[0]::bigint; RETURN NEW; END
$$
"""
KEPT = {"closed_months": "WHEN (OLD.hash IS NOT NULL)", "closed_balances": ""}
SQLITE_KEEP = """
CREATE TRIGGER {table}_refuse_{change} BEFORE {change} ON {table} {when}
BEGIN SELECT RAISE(ABORT, 'a closed month does not change'); END
"""
POSTGRES_REFUSE = """
CREATE FUNCTION closed_months_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'a closed month does not change' USING ERRCODE = 'restrict_violation'; END
$$
"""
POSTGRES_KEEP = """
CREATE TRIGGER {table}_refuse_{change} BEFORE {change} ON {table}
FOR EACH ROW {when} EXECUTE FUNCTION closed_months_refuse()
"""


def upgrade() -> None:
    sums = ("first_open_id", "accounts", "entries", "requests")
    money = ("opening_nano", "opening_granted_nano", "closing_nano", "closing_granted_nano")
    op.create_table(
        "closed_months",
        sa.Column("month", sa.Text, nullable=False),
        sa.Column("starts_at", sa.BigInteger, nullable=False),
        sa.Column("ends_at", sa.BigInteger, nullable=False),
        sa.Column("sealed_at", sa.BigInteger, nullable=False),
        sa.Column("closed_at", sa.BigInteger),
        *(sa.Column(name, sa.BigInteger) for name in (*sums, *money)),
        sa.Column("sums", sa.Text),
        sa.Column("hash", sa.LargeBinary(32)),
        sa.PrimaryKeyConstraint("month", name="pk_closed_months"),
        sa.CheckConstraint("(hash IS NULL) = (closed_at IS NULL)", name="ck_closed_months_closed_has_a_hash"),
    )
    op.create_index("uq_closed_months_ends_at", "closed_months", ["ends_at"], unique=True)
    op.create_table(
        "closed_balances",
        sa.Column("month", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("balance_nano", sa.BigInteger, nullable=False),
        sa.Column("granted_nano", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("month", "account_id", name="pk_closed_balances"),
        sa.ForeignKeyConstraint(["month"], ["closed_months.month"], name="fk_closed_balances_month"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_closed_balances_account_id"),
    )
    is_correction = sa.text("kind = 'correction'")
    op.create_index(
        "ix_entries_correction",
        "entries",
        ["completion_id"],
        sqlite_where=is_correction,
        postgresql_where=is_correction,
    )
    is_sqlite = op.get_context().dialect.name == "sqlite"
    if not is_sqlite:
        op.execute(POSTGRES_DATE)
        op.execute(POSTGRES_REFUSE)
    for table, when in KEPT.items():
        for change in ("UPDATE", "DELETE"):
            op.execute((SQLITE_KEEP if is_sqlite else POSTGRES_KEEP).format(table=table, change=change, when=when))
