"""A rate of a key's own, and the epochs by which running processes learn that something is to be read again."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("keys", sa.Column("requests_per_second", sa.Float))
    op.add_column("keys", sa.Column("burst", sa.Integer))
    op.create_table(
        "epochs",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_epochs"),
    )
    op.execute("INSERT INTO epochs (name, number) VALUES ('classes', 0)")
