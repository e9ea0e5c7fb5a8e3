"""Opening the store for use."""

from cadenza.store.migrate import migrate, schema_state
from cadenza.store.store import Store, StoreUnavailable


async def prepare_store(store: Store) -> None:
    """Migrate a SQLite store. Several machines may share a Postgres, so its operator runs `cadenza migrate`."""
    if store.is_sqlite:
        await migrate(store)
    elif (found := await schema_state(store)).state != "current":
        raise StoreUnavailable(f"The store's schema is {found.state}. Run 'cadenza migrate', then start again.")
