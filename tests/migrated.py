"""Stores with the newest schema: the real migrations make one in each test process, and tests get copies of it."""

import asyncio
import contextlib
import functools
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.store import Store

STORE_WAIT_S = 60.0
PRIVATE = 0o600

T = TypeVar("T")


def copy_migrated_store(path: Path) -> None:
    """Make a SQLite file with the newest schema and no rows. Its folder exists already."""
    path.write_bytes(_migrated_file())
    path.chmod(PRIVATE)


def migrate_store(url: str) -> None:
    """Bring the schema of a store to the newest revision."""
    run_aside(lambda: with_store(url, migrate))


def checkpointed_bytes(path: Path) -> bytes:
    """A SQLite file that nobody has open, with all that was committed."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


async def with_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    store = open_store(url, STORE_WAIT_S)
    try:
        return await work(store)
    finally:
        await store.close()


def run_aside(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on an event loop in a thread of its own, so that code with and without a running loop may call it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


@functools.cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory(prefix="cadenza-store-") as folder:
        path = Path(folder) / "cadenza.db"
        migrate_store(f"sqlite:///{path}")
        return checkpointed_bytes(path)
