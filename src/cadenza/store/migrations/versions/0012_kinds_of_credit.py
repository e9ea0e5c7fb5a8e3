"""Kinds of credit: entries have an origin and their granted part, accounts the granted part of their balance.

Expand only: a process of the release before goes on serving. It does not count granted credit: what it spends is taken
from paid credit, as far as there is any, and what it gives counts as paid. Rows of `entries` are not changed. What was
granted before is computed from them before any table is locked: granted credit is spent first, and a payment, its
refunds and its disputes move paid credit.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

# With x what an entry may move of the granted credit, that credit is max(0, before + x) after each entry: the running
# sum of x, less the lowest that it ever was below zero.
GRANTED = """
CREATE TEMPORARY TABLE granted_before AS
SELECT account_id, SUM(x) - MIN(CASE WHEN total < 0 THEN total ELSE 0 END) AS amount
FROM (
    SELECT account_id, x, SUM(x) OVER (PARTITION BY account_id ORDER BY id) AS total FROM (
        SELECT account_id, id, CASE
            WHEN kind = 'grant' AND substr(source, 1, 4) = 'pay_' THEN 0
            WHEN kind = 'correction' AND completion_id IS NULL AND debt_id IS NULL AND source IS NOT NULL
            AND substr(source, 1, 10) <> 'reference:' AND substr(source, 1, 8) <> 'erasure:' THEN 0
            ELSE amount_nano END AS x
        FROM entries
    ) moves
) totals GROUP BY account_id
"""
FILL = """
UPDATE accounts SET granted_nano = (
    SELECT CASE WHEN g.amount < balance_nano THEN g.amount ELSE balance_nano END
    FROM granted_before g WHERE g.account_id = accounts.id
) WHERE EXISTS (SELECT 1 FROM granted_before g WHERE g.account_id = accounts.id)
"""


def upgrade() -> None:
    op.execute(GRANTED)
    op.execute("CREATE UNIQUE INDEX granted_before_account_id ON granted_before (account_id)")
    for name in ("granted_nano", "granted_before_nano"):
        op.add_column("accounts", sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("entries", sa.Column("origin", sa.Text))
    op.add_column("entries", sa.Column("granted_nano", sa.BigInteger))
    op.execute(FILL)
    op.execute("UPDATE accounts SET granted_before_nano = granted_nano WHERE granted_nano <> 0")
    op.execute("DROP TABLE granted_before")
