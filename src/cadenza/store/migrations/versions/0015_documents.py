"""Receipts, statements and credit notes, the counters of their numbers, and the buyers that they name.

Expand only: a process of the release before issues no documents. What is due by then is issued by the new one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

SQLITE_TRIGGER = """
CREATE TRIGGER documents_refuse_{change} BEFORE {change} ON documents
BEGIN SELECT RAISE(ABORT, 'documents do not change'); END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION documents_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'documents do not change' USING ERRCODE = 'restrict_violation'; END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER documents_refuse_{change} BEFORE {change} ON documents
FOR EACH STATEMENT EXECUTE FUNCTION documents_refuse()
"""


def upgrade() -> None:
    op.create_table(
        "documents",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("ordinal", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("number", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("payment_id", sa.Text),
        sa.Column("issued_at", sa.BigInteger, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("kind", "ordinal", name="pk_documents"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_documents_account_id"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.id"], name="fk_documents_payment_id"),
        sa.CheckConstraint("kind IN ('receipt', 'statement', 'credit-note')", name="ck_documents_kind_is_known"),
        sa.CheckConstraint("ordinal > 0", name="ck_documents_ordinal_is_positive"),
    )
    op.create_index("uq_documents_subject", "documents", ["account_id", "kind", "subject"], unique=True)
    op.create_index("uq_documents_number", "documents", ["number"], unique=True)
    op.create_table(
        "document_counters",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("ordinal", sa.BigInteger, nullable=False),
        sa.Column("through", sa.Text),
        sa.PrimaryKeyConstraint("kind", name="pk_document_counters"),
    )
    op.create_table(
        "buyers",
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("tax_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name="pk_buyers"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_buyers_account_id"),
    )
    is_sqlite = op.get_context().dialect.name == "sqlite"
    if not is_sqlite:
        op.execute(POSTGRES_FUNCTION)
    for change in ("UPDATE", "DELETE"):
        op.execute((SQLITE_TRIGGER if is_sqlite else POSTGRES_TRIGGER).format(change=change))
