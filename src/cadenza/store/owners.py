"""Which processes are alive: each holds a lock that ends with it, so no clock and no timeout decides.

A serving process has a random name, writes it into its holds, and keeps the lock of that name: a locked file beside a
SQLite store, an advisory lock on Postgres. A process that can take the lock of another knows that the other is dead,
and that no third process is cleaning up after it.
"""

import asyncio
import contextlib
import secrets
from contextlib import AbstractAsyncContextManager

from cadenza.store.store import Store, StoreUnavailable


class Owner:
    """The name of this process and the lock on it."""

    def __init__(self, store: Store) -> None:
        self.name = "proc_" + secrets.token_urlsafe(12)
        self._store = store
        self._locks = contextlib.AsyncExitStack()

    async def start(self) -> None:
        if not await self._locks.enter_async_context(self.lock_of(self.name)):
            raise StoreUnavailable("The lock that shows that this process is alive could not be taken: start it again.")

    async def stop(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # the lock was lost with its connection
            await self._locks.aclose()

    async def renew(self) -> None:
        """Take the lock again if it was lost with its connection. Other processes wait `lock_grace_s` for this."""
        if self._store.lock_grace_s and await self._is_free(self.name):
            await self.stop()
            await self.start()

    async def find_dead(self, names: set[str]) -> list[str]:
        """Return the names whose locks are free, after the time that a living process needs to take its lock again.

        Take `lock_of` the name before cleaning up: it is held again where the process turned out to be alive.
        """
        dead = [name for name in sorted(names - {self.name}) if await self._is_free(name)]
        if dead:
            await asyncio.sleep(self._store.lock_grace_s)
        return dead

    def lock_of(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Try to take a process's lock and hold it for the block; True where that process is dead."""
        return self._store.process_lock(name)

    async def _is_free(self, name: str) -> bool:
        async with self.lock_of(name) as is_taken:
            return is_taken
