"""What a store that answers may still hide: that it takes no change, and that its file is damaged."""

from sqlalchemy import text

from cadenza.store.statements import Statement
from cadenza.store.store import Store

CHANGE_NOTHING = Statement(text("UPDATE alembic_version SET version_num = version_num"))
QUICK_CHECK = Statement(text("PRAGMA quick_check(1)"))


async def check_write(store: Store) -> None:
    """Make a change that changes nothing durable; StoreUnavailable if the disk is full or may not be written."""
    await store.transact(lambda tx: tx.change(CHANGE_NOTHING, {}), is_brief=True, is_single=True)


async def find_damage(store: Store) -> str | None:
    """What SQLite finds wrong with its file, if anything. It reads the whole file. Postgres checks its own."""
    if not store.is_sqlite:
        return None
    [(found,), *_] = await store.rows(QUICK_CHECK, {})
    return None if found == "ok" else str(found).partition("\n")[0]
