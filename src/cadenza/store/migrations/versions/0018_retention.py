"""Metering rows that are rolled up by day, how far that has come, and old audit events that may be removed.

Expand only: a process of the release before reads no days, so its reports lack what is rolled up. Nothing is rolled up
or removed before the config has a limit for it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

# Events of an account may be removed if they are older than the row in `retention` says.
IS_OLD = """(OLD.account_id IS NOT NULL AND OLD.at < COALESCE(
    (SELECT kept_from FROM retention WHERE name = 'audit_events'), 0))"""
SQLITE_TRIGGER = f"""
CREATE TRIGGER acts_refuse_delete BEFORE DELETE ON acts WHEN NOT {IS_OLD}
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END
"""
POSTGRES_FUNCTION = f"""
CREATE FUNCTION acts_refuse_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {IS_OLD} THEN RETURN OLD; END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'restrict_violation';
END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER acts_refuse_delete BEFORE DELETE ON acts FOR EACH ROW EXECUTE FUNCTION acts_refuse_delete()
"""


def upgrade() -> None:
    create_usage_days()
    op.create_table(
        "retention",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kept_from", sa.BigInteger),
        sa.Column("worked_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_retention"),
    )
    let_old_acts_be_removed()


def create_usage_days() -> None:
    op.create_table(
        "usage_days",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("account_id", "key_id")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("class_id", "provider", "model")),
        *(sa.Column(name, sa.BigInteger) for name in ("version", "input_nano", "output_nano", "cached_input_nano")),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("charged_at", sa.BigInteger),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano", "charged_nano")
        ),
        *(sa.Column(name, sa.BigInteger) for name in ("short_nano", "provider_cost_nano")),
        sa.PrimaryKeyConstraint("id", name="pk_usage_days"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_usage_days_account_id"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_usage_days_key_id"),
        sa.CheckConstraint("requests > 0", name="ck_usage_days_requests_are_counted"),
        sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="ck_usage_days_cached_is_part_of_prompt"),
        sa.CheckConstraint("completion_tokens >= 0", name="ck_usage_days_completion_is_not_negative"),
        sa.CheckConstraint("cost_nano >= 0 AND charged_nano >= 0", name="ck_usage_days_cost_is_not_negative"),
    )
    op.create_index("ix_usage_days_account_id", "usage_days", ["account_id", "started_at"])


def let_old_acts_be_removed() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER acts_refuse_delete")
        op.execute(SQLITE_TRIGGER)
        return
    op.execute("DROP TRIGGER acts_refuse_delete ON acts")
    op.execute(POSTGRES_FUNCTION)
    op.execute(POSTGRES_TRIGGER)
