"""Truncates SQLite's write-ahead log, which otherwise keeps erased data until the service stops.

It is safe beside a running service: an attempt holds the write lock for about a tenth of a second, and writers wait.
While another connection reads, the log cannot be truncated; after two seconds `empty_log` gives up.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from cadenza.store.store import Store

TRIES = 10
LOCK_S = 0.1
PAUSE_S = 0.1
SOON_S = 1.0  # so that many deletions cause one checkpoint
PAUSE_S_MAX = 60.0  # during a long read, such as a backup


class LogEraser:
    """Empties the log in the background, once for all that was erased in the last second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False

    def erase_soon(self) -> None:
        """Call it after a transaction that erased something."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        pause_s = SOON_S
        try:
            while self._is_wanted:
                await asyncio.sleep(pause_s)
                self._is_wanted = False
                if not await self._store.empty_log():
                    self._is_wanted = True
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
        finally:
            self._task = None


async def empty_log(database: Path) -> bool:
    """Checkpoint all changes into the database file and truncate the log. Whether it is empty now."""
    for _ in range(TRIES):
        if await asyncio.to_thread(_truncate, database):
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
