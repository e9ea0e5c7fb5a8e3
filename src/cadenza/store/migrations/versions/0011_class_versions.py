"""Versions of classes, verdicts on candidates, and prices that count from a date on.

Expand only: a process of the release before serves what its config names, and leaves the version of a request empty.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
breaks_before = None

SQLITE_TRIGGER = """
CREATE TRIGGER class_versions_refuse_{change} BEFORE {change} ON class_versions
BEGIN SELECT RAISE(ABORT, 'versions of classes are append-only'); END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION class_versions_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'versions of classes are append-only' USING ERRCODE = 'restrict_violation'; END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER class_versions_refuse_{change} BEFORE {change} ON class_versions
FOR EACH STATEMENT EXECUTE FUNCTION class_versions_refuse()
"""


def upgrade() -> None:
    for table in ("usage", "marks"):
        op.add_column(table, sa.Column("version", sa.Integer))
    of_service = sa.text("account_id IS NULL")
    op.create_index("ix_acts_service", "acts", ["subject", "id"], sqlite_where=of_service, postgresql_where=of_service)
    create_class_versions()
    create_class_states()
    create_verdicts()
    create_price_changes()


def create_class_versions() -> None:
    op.create_table(
        "class_versions",
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("routes", sa.Text, nullable=False),
        sa.Column("character", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("verdict_id", sa.Text),
        sa.PrimaryKeyConstraint("class_id", "number", name="pk_class_versions"),
        sa.CheckConstraint("origin IN ('config', 'promotion')", name="ck_class_versions_origin_is_known"),
        sa.CheckConstraint("number > 0", name="ck_class_versions_number_is_positive"),
    )
    op.create_index("ix_class_versions_digest", "class_versions", ["class_id", "digest"])
    if op.get_context().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(SQLITE_TRIGGER.format(change=change))
        return
    op.execute(POSTGRES_FUNCTION)
    for change in ("UPDATE", "DELETE", "TRUNCATE"):
        op.execute(POSTGRES_TRIGGER.format(change=change))


def create_class_states() -> None:
    op.create_table(
        "class_states",
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer),
        sa.Column("is_adopted", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("candidate", sa.Integer),
        sa.Column("share", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("canary", sa.Text),
        sa.Column("revision", sa.BigInteger, nullable=False, server_default=sa.text("1")),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("watched_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("class_id", name="pk_class_states"),
        sa.CheckConstraint("(candidate IS NULL) = (share = 0)", name="ck_class_states_candidate_has_a_share"),
        sa.CheckConstraint("share BETWEEN 0 AND 99", name="ck_class_states_share_is_a_part"),
    )


def create_verdicts() -> None:
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("incumbent", sa.Integer, nullable=False),
        sa.Column("candidate", sa.Text, nullable=False),
        sa.Column("candidate_digest", sa.LargeBinary(32)),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("suite_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("spent_nano", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("result", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_verdicts"),
        sa.CheckConstraint("kind IN ('evaluation', 'watch')", name="ck_verdicts_kind_is_known"),
        sa.CheckConstraint("state IN ('running', 'finished', 'stopped')", name="ck_verdicts_state_is_known"),
    )
    op.create_index("ix_verdicts_class_id", "verdicts", ["class_id", "created_at"])
    op.create_table(
        "verdict_scores",
        sa.Column("verdict_id", sa.Text, nullable=False),
        sa.Column("case_number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("run", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("side", sa.Text, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("cost_nano", sa.BigInteger),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("first_token_ms", sa.Float),
        sa.Column("duration_ms", sa.Float),
        sa.Column("fault", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("verdict_id", "case_number", "run", "side", name="pk_verdict_scores"),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdicts.id"], name="fk_verdict_scores_verdict_id"),
        sa.CheckConstraint("side IN ('incumbent', 'candidate')", name="ck_verdict_scores_side_is_known"),
        sa.CheckConstraint("score BETWEEN 0 AND 1", name="ck_verdict_scores_score_is_a_share"),
    )


def create_price_changes() -> None:
    op.create_table(
        "price_changes",
        sa.Column("class_id", sa.Text, nullable=False),
        sa.Column("from_at", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("input_nano", sa.BigInteger, nullable=False),
        sa.Column("output_nano", sa.BigInteger, nullable=False),
        sa.Column("cached_input_nano", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("class_id", "from_at", name="pk_price_changes"),
        sa.CheckConstraint("input_nano >= 0 AND output_nano >= 0", name="ck_price_changes_prices_are_not_negative"),
        sa.CheckConstraint("from_at > created_at", name="ck_price_changes_starts_in_the_future"),
    )
