"""The kinds of entries are compared one by one: SQLite would build a table in memory for IN, for each new entry.

The same rule in other words. SQLite documents this way to change a constraint without copying its table, which takes
minutes for a long ledger. If it is built to refuse that, it keeps IN. So does Postgres, where IN costs nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

BEFORE = "kind IN ('grant', 'charge', 'correction')"
AFTER = "kind = 'charge' OR kind = 'grant' OR kind = 'correction'"
REWORD = sa.text(
    "UPDATE sqlite_master SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'entries'"
)


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    if connection.exec_driver_sql("PRAGMA writable_schema").scalar_one():
        connection.execute(REWORD, {"before": BEFORE, "after": AFTER})
        connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")  # so that all connections read it again
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")
