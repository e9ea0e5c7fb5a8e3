"""Empties SQLite's write-ahead log, which otherwise keeps what was erased until the service stops.

It is safe beside a running service: a try holds the write lock for about a tenth of a second, and writers wait for it.
While another connection reads, the log cannot be emptied; after two seconds it is left as it is.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from cadenza.store.store import Store

TRIES = 10
LOCK_S = 0.1
PAUSE_S = 0.1


async def empty_log(store: Store) -> bool:
    """Move all changes into the file of the store and truncate the log. True if it is empty, or if there is none."""
    if not store.is_sqlite or store.path is None:
        return True
    for _ in range(TRIES):
        if await asyncio.to_thread(_truncate, store.path):
            return True
        await asyncio.sleep(PAUSE_S)
    return False


def _truncate(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_S, isolation_level=None)) as connection:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:  # locked, or the disk is full
        return False
    return not is_busy
