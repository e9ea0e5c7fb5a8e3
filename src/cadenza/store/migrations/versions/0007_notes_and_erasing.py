"""Notes of an account, and accounts whose personal data was erased.

Expand only: a process of the release before goes on serving. The audit trail stays append-only, except that the address
and the details of an account may be taken out of it once the account is erased.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

ERASES = """
EXISTS (
    SELECT 1 FROM accounts
    WHERE erased_at IS NOT NULL AND (id = OLD.account_id OR email = OLD.actor)
    AND NEW.actor IN (OLD.actor, id) AND (NEW.detail = OLD.detail OR (NEW.detail = '' AND id = OLD.account_id))
    AND NEW.id = OLD.id AND NEW.at = OLD.at AND NEW.act = OLD.act AND NEW.subject = OLD.subject
    AND (NEW.account_id = OLD.account_id OR (NEW.account_id IS NULL AND OLD.account_id IS NULL))
)
"""
SQLITE_TRIGGER = f"""
CREATE TRIGGER acts_refuse_update BEFORE UPDATE ON acts WHEN NOT {ERASES}
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END
"""
POSTGRES_FUNCTION = f"""
CREATE FUNCTION acts_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {ERASES} THEN RETURN NEW; END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'restrict_violation';
END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER acts_refuse_update BEFORE UPDATE ON acts FOR EACH ROW EXECUTE FUNCTION acts_refuse_update()
"""


def upgrade() -> None:
    op.add_column("accounts", sa.Column("note_count", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("accounts", sa.Column("erased_at", sa.BigInteger))
    op.create_table(
        "notes",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notes"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_notes_account_id"),
        sa.CheckConstraint("length(text) BETWEEN 1 AND 1000", name="ck_notes_text_is_short"),
    )
    op.create_index("ix_notes_account_id", "notes", ["account_id", "created_at", "id"])
    let_acts_be_erased()


def let_acts_be_erased() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER acts_refuse_update")
        op.execute(SQLITE_TRIGGER)
        return
    op.execute("DROP TRIGGER acts_refuse_update ON acts")
    op.execute(POSTGRES_FUNCTION)
    op.execute(POSTGRES_TRIGGER)
