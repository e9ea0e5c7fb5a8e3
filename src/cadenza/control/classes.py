"""Classes are defined in the config file; this tells running processes that the file has changed."""

from cadenza.fleet.changes import make_change
from cadenza.store.store import Store
from cadenza.store.tables import epochs


async def announce_reload(store: Store) -> None:
    """Have every process on this store read its own config file again before its next request."""
    await make_change(store, lambda tx: epochs.begin_next(tx, epochs.CLASSES))
