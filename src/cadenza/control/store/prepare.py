"""Opening the store for use."""

from collections.abc import Callable
from pathlib import Path

from cadenza.store.migrate import SchemaState, migrate, schema_state
from cadenza.store.store import Store, StoreUnavailable


async def prepare_store(store: Store, on_backup: Callable[[Path], None] | None = None) -> None:
    """Migrate the store of one machine. Where several machines share a store, its operator runs `cadenza migrate`."""
    if store.is_shared_by_machines:
        _require_usable(await schema_state(store))
    else:
        await migrate(store, on_backup)


async def require_store(store: Store) -> None:
    """For commands that only read: StoreUnavailable unless the store exists and this program may use its schema."""
    if store.path is not None and not store.path.exists():
        raise StoreUnavailable(
            f"There is no store at {store.path}.", "'cadenza serve' and 'cadenza migrate' create it."
        )
    _require_usable(await schema_state(store))


def _require_usable(found: SchemaState) -> None:
    if found.state == "ahead":
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision}, and this program knows up to {found.head}.",
            "Run the newer program that made it.",
        )
    if not found.is_usable:
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision or 'none'}, and this program needs {found.head}.",
            "Run 'cadenza migrate', which copies a SQLite store first.",
        )
