"""Classes: what stands behind them is in the config file; here it is announced that the file has changed."""

from cadenza.store import epochs
from cadenza.store.database import Database


async def announce_reload(db: Database) -> None:
    """Every process on this store reads its own file again before it serves its next request."""
    async with db.write() as conn:
        await epochs.begin_next(conn, epochs.CLASSES)
