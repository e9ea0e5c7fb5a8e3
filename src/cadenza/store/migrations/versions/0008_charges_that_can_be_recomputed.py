"""A metering row has the prices of its charge, what was held and what could not be paid, and who ended the request.

Expand only: a process of the release before writes none of it, and the check of the ledger does not recompute its rows.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

AMOUNTS = ("input_nano", "output_nano", "cached_input_nano", "held_nano", "short_nano")


def upgrade() -> None:
    for name in AMOUNTS:
        op.add_column("usage", sa.Column(name, sa.BigInteger))
    op.add_column("usage", sa.Column("source", sa.Text))
    op.add_column("usage", sa.Column("idempotency_digest", sa.LargeBinary(32)))
