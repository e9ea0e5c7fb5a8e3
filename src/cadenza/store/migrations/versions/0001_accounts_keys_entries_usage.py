"""Accounts, keys, the append-only ledger and one metering row per request."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SQLITE_TRIGGER = """
CREATE TRIGGER entries_refuse_{change} BEFORE {change} ON entries
BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION entries_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'entries are append-only' USING ERRCODE = 'restrict_violation'; END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER entries_refuse_{change} BEFORE {change} ON entries
FOR EACH STATEMENT EXECUTE FUNCTION entries_refuse()
"""


def upgrade() -> None:
    create_accounts()
    create_keys()
    create_entries()
    create_usage()
    make_entries_append_only()


def create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("email", sa.Text, nullable=False),
        sa.Column("password_hash", sa.Text, nullable=False),
        sa.Column("preferred_class", sa.Text, nullable=False, server_default="forte"),
        sa.Column("balance_nano", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("held_nano", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("email", name="uq_accounts_email"),
        sa.CheckConstraint("email = lower(email)", name="ck_accounts_email_is_lower_case"),
        sa.CheckConstraint(
            "preferred_class IN ('mezzo', 'forte', 'fortissimo')", name="ck_accounts_preferred_class_is_known"
        ),
        sa.CheckConstraint("held_nano >= 0", name="ck_accounts_held_is_not_negative"),
        sa.CheckConstraint("balance_nano - held_nano >= 0", name="ck_accounts_balance_covers_held"),
    )


def create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_keys_account_id"),
        sa.CheckConstraint("length(prefix) = 12", name="ck_keys_prefix_has_12_characters"),
        sa.CheckConstraint("length(digest) = 32", name="ck_keys_digest_has_32_bytes"),
        sa.CheckConstraint("expires_at > created_at", name="ck_keys_expires_after_creation"),
    )
    op.create_index("uq_keys_digest", "keys", ["digest"], unique=True)
    op.create_index("ix_keys_account_id", "keys", ["account_id"])


def create_entries() -> None:
    op.create_table(
        "entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_entries_account_id"),
        sa.CheckConstraint("kind IN ('grant', 'charge', 'correction')", name="ck_entries_kind_is_known"),
        sa.CheckConstraint("kind <> 'grant' OR amount_nano > 0", name="ck_entries_grant_is_positive"),
        sa.CheckConstraint("kind <> 'charge' OR amount_nano <= 0", name="ck_entries_charge_is_not_positive"),
        sa.CheckConstraint("kind <> 'charge' OR request_id IS NOT NULL", name="ck_entries_charge_has_request"),
    )
    op.create_index("ix_entries_account_id", "entries", ["account_id", "id"])
    charges = sa.text("kind = 'charge'")
    op.create_index(
        "uq_entries_charge", "entries", ["request_id"], unique=True, sqlite_where=charges, postgresql_where=charges
    )


def create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("cost_nano", sa.BigInteger, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("first_byte_ms", sa.BigInteger),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_usage"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_usage_account_id"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_usage_key_id"),
        sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="ck_usage_cached_is_part_of_prompt"),
        sa.CheckConstraint("completion_tokens >= 0", name="ck_usage_completion_is_not_negative"),
        sa.CheckConstraint("cost_nano >= 0", name="ck_usage_cost_is_not_negative"),
    )
    op.create_index("ix_usage_account_id", "usage", ["account_id", "started_at"])


def make_entries_append_only() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(SQLITE_TRIGGER.format(change=change))
        return
    op.execute(POSTGRES_FUNCTION)
    for change in ("update", "delete", "truncate"):
        op.execute(POSTGRES_TRIGGER.format(change=change))
