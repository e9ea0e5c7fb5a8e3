"""Closed months: their sums, their hash, and the balance of each account at their end. An index of corrections.

An entry that is written after the month of its time was closed is dated at the first moment that is still open. A
trigger does it for every program that writes, so expand only: a process of the release before goes on serving. On
SQLite a trigger cannot change the row that is written: it writes another one in its place. So a migration that adds a
column to `entries` must build the trigger anew.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

# All columns but the time, and the id, which is not known yet.
COLUMNS = "account_id, kind, amount_nano, completion_id, note, source, debt_id, origin, granted_nano"
NEW = ", ".join(f"NEW.{name}" for name in COLUMNS.split(", "))
CLOSED = "(SELECT MAX(ends_at) FROM closed_months)"
SQLITE_DATE = f"""
CREATE TRIGGER entries_after_close BEFORE INSERT ON entries WHEN NEW.created_at < {CLOSED}
BEGIN
    INSERT INTO entries ({COLUMNS}, created_at) VALUES ({NEW}, {CLOSED});
    SELECT RAISE(IGNORE);
END
"""  # noqa: S608 our own names
POSTGRES_DATE = f"""
CREATE FUNCTION entries_date() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE closed bigint := {CLOSED};
BEGIN
    IF NEW.created_at < closed THEN NEW.created_at := closed; END IF;
    RETURN NEW;
END
$$
"""
POSTGRES_DATE_TRIGGER = """
CREATE TRIGGER entries_after_close BEFORE INSERT ON entries FOR EACH ROW EXECUTE FUNCTION entries_date()
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
    for statement in (SQLITE_DATE,) if is_sqlite else (POSTGRES_DATE, POSTGRES_DATE_TRIGGER, POSTGRES_REFUSE):
        op.execute(statement)
    for table, when in KEPT.items():
        for change in ("UPDATE", "DELETE"):
            op.execute((SQLITE_KEEP if is_sqlite else POSTGRES_KEEP).format(table=table, change=change, when=when))
