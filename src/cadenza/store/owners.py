"""Which processes are alive, told by locks that end with their process and by no clock.

Each serving process has a name of its own, which its holds carry, and keeps a lock on that name while it lives: a
locked file beside an SQLite store, an advisory lock of a session on Postgres. Whoever can take the lock of another
knows that its process is gone, and that nobody else is looking after what it left.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.store.database import Database, StoreUnavailable

KEEP_EVERY_S = 0.5
TAKEN_AGAIN_S = 2.0  # by then a process that lives has found its connection lost, and its lock with it


class Owner:
    """The name of this process and the lock on it."""

    def __init__(self, db: Database) -> None:
        self.name = "proc_" + secrets.token_urlsafe(12)
        self._db = db
        self._locks = contextlib.AsyncExitStack()

    async def start(self) -> None:
        if not await self._locks.enter_async_context(self.lock_of(self.name)):
            raise StoreUnavailable("The lock that shows that this process lives could not be taken.")

    async def stop(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # a lock that went with its connection is gone already
            await self._locks.aclose()

    async def keep(self) -> None:
        """Take the lock anew where it was lost with its connection: whoever sweeps leaves us the time."""
        if self._db.path is None and await self._is_free(self.name):
            await self.stop()
            await self.start()

    async def find_gone(self, names: set[str]) -> list[str]:
        """Those whose lock is free, and stays so: a process that lives would take it again."""
        gone = [name for name in sorted(names - {self.name}) if await self._is_free(name)]
        if gone and self._db.path is None:
            await asyncio.sleep(TAKEN_AGAIN_S)
        return gone

    async def _is_free(self, name: str) -> bool:
        async with self.lock_of(name) as is_taken:
            return is_taken

    def names_left(self) -> list[str]:
        """Those whose lock left a file behind, be their process alive or gone."""
        folder = _folder(self._db.path) if self._db.path else None
        return [path.name for path in folder.iterdir()] if folder and folder.is_dir() else []

    @contextlib.asynccontextmanager
    async def lock_of(self, name: str) -> AsyncIterator[bool]:
        """Whether the lock of that name was free, and is now held: then its process is gone."""
        if self._db.path is not None:
            with _file_lock(self._db.path, name) as is_taken:
                yield is_taken
        else:
            async with self._db.read() as conn, _advisory_lock(conn, name) as is_taken:
                yield is_taken


@contextlib.contextmanager
def _file_lock(store: Path, name: str) -> Iterator[bool]:
    """A process that made no such file, or whose file nobody locks, is gone; its file goes with the lock."""
    folder = _folder(store)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _folder(store: Path) -> Path:
    return store.with_name(store.name + "-owners")


@contextlib.asynccontextmanager
async def _advisory_lock(conn: AsyncConnection, name: str) -> AsyncIterator[bool]:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
    is_taken = bool((await conn.execute(select(func.pg_try_advisory_lock(number)))).scalar_one())
    try:
        yield is_taken
    finally:
        if is_taken:
            await conn.execute(select(func.pg_advisory_unlock(number)))
