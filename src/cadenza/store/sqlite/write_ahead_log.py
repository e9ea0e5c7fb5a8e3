"""SQLite's write-ahead log: checkpoints, which copy it into the database file, and its truncation.

`Checkpoints` keeps the log short while commits go on. `empty_log` truncates it, because it otherwise keeps erased data
until the service stops. That is safe beside a running service: an attempt holds the write lock for about a tenth of a
second, and writers wait. While another connection reads, the log cannot be truncated; after two seconds it gives up.
"""

import asyncio
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

CHECKPOINT_ROWS = 5_000  # changed since the last checkpoint: 12 MB of log if requests share commits, 28 if none does
LOG_PAGES_MAX = 16_000  # 64 MB
COPY_LOG = "PRAGMA wal_checkpoint(PASSIVE)"
TRIES = 10
LOCK_S = 0.1
PAUSE_S = 0.1
FREE_EVERY_S = 60.0  # on a full disk


class Checkpoints:
    """Copies the log into the database file in a thread, so that no commit has to.

    Commits go on meanwhile, so the copy lacks the last of them, and only after a complete copy does SQLite begin the
    log anew. So `copy_remaining`, which runs between two commits, copies the few pages that are left. If a copy
    fails, as on a full disk, the next one has more to copy; at LOG_PAGES_MAX, a commit copies. During a long read the
    log grows. On a full disk the log is also truncated: most of its pages have their place in the file, so that gives
    back space.
    """

    def __init__(self, database: Path, copy_remaining: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._copy_remaining = copy_remaining
        self._copied = 0
        self._task: asyncio.Task[object] | None = None
        self._freed_s = -math.inf  # when the log was truncated for space

    def committed(self, changes: int) -> None:
        """Call it after a commit, with the number of rows that its connection has changed so far."""
        if changes - self._copied >= CHECKPOINT_ROWS and self._is_idle():
            self._copied = changes
            self._task = asyncio.create_task(self._copy())

    def disk_is_full(self) -> None:
        """Call it after a commit that found no space."""
        if self._is_idle() and time.monotonic() - self._freed_s >= FREE_EVERY_S:
            self._freed_s = time.monotonic()
            self._task = asyncio.create_task(empty_log(self._database))

    async def stop(self) -> None:
        """Wait for a copy that is being made."""
        if self._task:
            await self._task
        self._copied = 0

    def _is_idle(self) -> bool:
        return self._task is None or self._task.done()

    async def _copy(self) -> None:
        await asyncio.to_thread(_copy_log, self._database)
        await self._copy_remaining()


def _copy_log(path: Path) -> None:
    """Copy what can be copied without waiting; then once more, what was committed meanwhile."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for _ in range(2):
            connection.execute(COPY_LOG)


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
