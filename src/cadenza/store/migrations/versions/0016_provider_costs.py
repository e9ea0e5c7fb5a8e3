"""What a provider charges for each request, attempts that no metering row has, and whether replies say what they cost.

Expand only: a process of the release before writes no costs and counts no attempts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("shows_cost", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("usage", sa.Column("provider_cost_nano", sa.BigInteger))
    op.create_table(
        "upstream_attempts",
        sa.Column("day", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", "provider", "model", "kind", name="pk_upstream_attempts"),
    )
