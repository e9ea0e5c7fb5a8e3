"""Access tokens for /platform/api, the token in each event of the audit log that was made with one, and an index.

Expand only: a process of the release before knows no tokens and writes events without one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("account_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("name", "prefix")),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "expires_at")),
        *(sa.Column(name, sa.BigInteger) for name in ("revoked_at", "last_used_at")),
        sa.PrimaryKeyConstraint("id", name="pk_access_tokens"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_access_tokens_account_id"),
        sa.CheckConstraint("length(digest) = 32", name="ck_access_tokens_digest_has_32_bytes"),
        sa.CheckConstraint("length(scopes) > 0", name="ck_access_tokens_scopes_are_named"),
        sa.CheckConstraint("expires_at > created_at", name="ck_access_tokens_expires_after_creation"),
    )
    op.create_index("uq_access_tokens_digest", "access_tokens", ["digest"], unique=True)
    op.create_index("ix_access_tokens_account_id", "access_tokens", ["account_id"])
    op.create_index("ix_payments_created_at", "payments", ["created_at"])
    op.add_column("acts", sa.Column("token", sa.Text))
