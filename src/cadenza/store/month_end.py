"""The trigger that dates entries after the end of the last closed month, whatever time their writer gave them.

It has the end of the month in its text: a look into a table would cost every charge 28 µs on Postgres, and a store
without closed months pays nothing. So each close makes it anew. On SQLite, where a trigger cannot change the row that
is written, it writes another one in its place: a migration that adds a column to `entries` must make it anew, too.
"""

from collections.abc import Sequence

from cadenza.store.schema import entries

NAME = "entries_after_close"
COPIED = [one.name for one in entries.c if one.name not in {"id", "created_at"}]  # the id is not known yet


def sqlite_trigger(ends_at: int) -> Sequence[str]:
    """The statements that make the trigger."""
    return (
        f"DROP TRIGGER IF EXISTS {NAME}",
        f"""
        CREATE TRIGGER {NAME} BEFORE INSERT ON entries WHEN NEW.created_at < {ends_at}
        BEGIN
            INSERT INTO entries ({", ".join(COPIED)}, created_at)
            VALUES ({", ".join(f"NEW.{name}" for name in COPIED)}, {ends_at});
            SELECT RAISE(IGNORE);
        END""",  # noqa: S608 our own names
    )


def postgres_trigger(ends_at: int) -> Sequence[str]:
    """The same. It locks the table against writers, and waits for those in flight."""
    return (
        f"""
        CREATE OR REPLACE TRIGGER {NAME} BEFORE INSERT ON entries FOR EACH ROW
        WHEN (NEW.created_at < {ends_at}) EXECUTE FUNCTION date_entry('{ends_at}')""",
    )
