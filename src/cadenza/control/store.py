"""Opening the store for use."""

from collections.abc import Callable
from pathlib import Path

from cadenza.store.migrate import migrate, schema_state
from cadenza.store.store import Store, StoreUnavailable


async def prepare_store(store: Store, on_backup: Callable[[Path], None] | None = None) -> None:
    """Migrate a SQLite store. Several machines may share a Postgres, so its operator runs `cadenza migrate`."""
    if store.is_sqlite:
        await migrate(store, on_backup)
    elif (found := await schema_state(store)).state != "current":
        raise StoreUnavailable(f"The store's schema is {found.state}.", "Run 'cadenza migrate', then start again.")


async def require_store(store: Store) -> None:
    """For commands that only read: StoreUnavailable unless the store exists and has the schema of this program."""
    if store.path is not None and not store.path.exists():
        raise StoreUnavailable(
            f"There is no store at {store.path}.", "'cadenza serve' and 'cadenza migrate' create it."
        )
    found = await schema_state(store)
    if found.state == "ahead":
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision}, and this program knows up to {found.head}.",
            "Run the newer program that made it.",
        )
    if found.state != "current":
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision or 'none'}, and this program needs {found.head}.",
            "Run 'cadenza migrate', which copies a SQLite store first.",
        )
