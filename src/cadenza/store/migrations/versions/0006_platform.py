"""The platform: sessions and second factors, spend caps, vouchers, payments, and the audit trail.

Expand only: a process of the release before goes on serving. It knows no spend caps and no suspended accounts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

SQLITE_TRIGGER = """
CREATE TRIGGER acts_refuse_{change} BEFORE {change} ON acts
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION acts_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'restrict_violation'; END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER acts_refuse_{change} BEFORE {change} ON acts
FOR EACH STATEMENT EXECUTE FUNCTION acts_refuse()
"""


def upgrade() -> None:
    add_to_accounts()
    op.add_column("keys", sa.Column("origin", sa.Text, nullable=False, server_default="owner"))
    op.add_column("keys", sa.Column("is_capped", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("entries", sa.Column("source", sa.Text))
    has_source = sa.text("source IS NOT NULL")
    op.create_index(
        "uq_entries_source", "entries", ["source"], unique=True, sqlite_where=has_source, postgresql_where=has_source
    )
    create_caps()
    create_sessions()
    create_second_factors()
    create_acts()
    create_vouchers()
    create_payments()


def add_to_accounts() -> None:
    for column in (
        sa.Column("is_operator", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("suspended_at", sa.BigInteger),
        sa.Column("verified_at", sa.BigInteger),
        sa.Column("theme", sa.Text, nullable=False, server_default="system"),
        sa.Column("uses_search", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("uses_memory", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("has_caps", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("low_balance_nano", sa.BigInteger, nullable=False, server_default=sa.text("1000000000")),
        sa.Column("low_noticed_at", sa.BigInteger),
    ):
        op.add_column("accounts", column)


def create_caps() -> None:
    op.create_table(
        "caps",
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("limit_nano", sa.BigInteger, nullable=False),
        sa.Column("month", sa.Integer, nullable=False),
        sa.Column("spent_nano", sa.BigInteger, nullable=False),
        sa.Column("excused_nano", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_caps"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_caps_key_id"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_caps_account_id"),
        sa.CheckConstraint("period IN ('total', 'month')", name="ck_caps_period_is_known"),
        sa.CheckConstraint(
            "limit_nano >= 0 AND spent_nano >= 0 AND excused_nano >= 0", name="ck_caps_money_is_not_negative"
        ),
        sa.CheckConstraint("spent_nano - limit_nano <= excused_nano", name="ck_caps_spent_is_within_limit"),
    )
    op.create_index("ix_caps_account_id", "caps", ["account_id"])
    op.create_table(
        "cap_holds",
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "process", name="pk_cap_holds"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_cap_holds_key_id"),
        sa.ForeignKeyConstraint(["process"], ["processes.name"], name="fk_cap_holds_process"),
        sa.CheckConstraint("amount_nano >= 0", name="ck_cap_holds_amount_is_not_negative"),
    )
    op.create_index("ix_cap_holds_process", "cap_holds", ["process"])


def create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("proved_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_sessions_account_id"),
        sa.CheckConstraint("stage IN ('second_factor', 'complete')", name="ck_sessions_stage_is_known"),
    )
    op.create_index("ix_sessions_account_id", "sessions", ["account_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "links",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text),
        sa.Column("email", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_links"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_links_account_id"),
        sa.CheckConstraint("kind IN ('verify', 'reset', 'change_email', 'invite')", name="ck_links_kind_is_known"),
    )
    op.create_index("ix_links_account_id", "links", ["account_id"])


def create_second_factors() -> None:
    op.create_table(
        "totp",
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("confirmed_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("account_id", name="pk_totp"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_totp_account_id"),
    )
    op.create_table(
        "recovery_codes",
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "digest", name="pk_recovery_codes"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_recovery_codes_account_id"),
    )
    op.create_table(
        "passkeys",
        sa.Column("id", sa.LargeBinary, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sign_count", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("last_used_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_passkeys"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_passkeys_account_id"),
    )
    op.create_index("ix_passkeys_account_id", "passkeys", ["account_id"])
    op.create_table(
        "site_secrets",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_site_secrets"),
    )


def create_acts() -> None:
    op.create_table(
        "acts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("act", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_acts"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_acts_account_id"),
    )
    op.create_index("ix_acts_account_id", "acts", ["account_id", "id"])
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(SQLITE_TRIGGER.format(change=change))
        return
    op.execute(POSTGRES_FUNCTION)
    for change in ("update", "delete", "truncate"):
        op.execute(POSTGRES_TRIGGER.format(change=change))


def create_vouchers() -> None:
    op.create_table(
        "vouchers",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("redeemed_at", sa.BigInteger),
        sa.Column("redeemed_by", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_vouchers"),
        sa.ForeignKeyConstraint(["redeemed_by"], ["accounts.id"], name="fk_vouchers_redeemed_by"),
        sa.CheckConstraint("amount_nano > 0", name="ck_vouchers_amount_is_positive"),
        sa.CheckConstraint("(redeemed_at IS NULL) = (redeemed_by IS NULL)", name="ck_vouchers_redeemed_has_an_owner"),
    )
    op.create_index("uq_vouchers_digest", "vouchers", ["digest"], unique=True)


def create_payments() -> None:
    op.create_table(
        "payments",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("checkout", sa.Text, nullable=False),
        sa.Column("reference", sa.Text),
        sa.Column("amount_nano", sa.BigInteger, nullable=False),
        sa.Column("returned_nano", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_payments"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_payments_account_id"),
        sa.CheckConstraint(
            "state IN ('open', 'paid', 'returned', 'disputed', 'expired')", name="ck_payments_state_is_known"
        ),
        sa.CheckConstraint("amount_nano > 0", name="ck_payments_amount_is_positive"),
        sa.CheckConstraint("returned_nano BETWEEN 0 AND amount_nano", name="ck_payments_returned_is_part_of_amount"),
    )
    op.create_index("uq_payments_checkout", "payments", ["checkout"], unique=True)
    op.create_index("ix_payments_reference", "payments", ["reference"])
    op.create_index("ix_payments_account_id", "payments", ["account_id"])
    op.create_table(
        "payment_events",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_payment_events"),
    )
