"""Opening the store for use, and checking that it takes writes: a readable store may be on a full disk."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from cadenza.observe import Log
from cadenza.store.migrate import SchemaState, migrate, schema_state
from cadenza.store.store import Store, StoreUnavailable, check_write


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
    found.refuse_unknown()
    if not found.is_usable:
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision or 'none'}, and this program needs {found.head}.",
            "Run 'cadenza migrate', which copies a SQLite store first.",
        )


class WriteCheck:
    """Whether the store takes writes, for readiness probes. A trial write is made at most once in `every_s`."""

    def __init__(self, store: Store, log: Log, every_s: float = 1.0, wait_s: float = 1.5) -> None:
        self._store = store
        self._log = log
        self._every_s = every_s
        self._wait_s = wait_s
        self._trial: asyncio.Task[StoreUnavailable | None] | None = None
        self._ended_s = 0.0
        self._failure: StoreUnavailable | None = None  # of the last trial that ended

    async def failure(self) -> StoreUnavailable | None:
        """Why the store takes no write; None if it does."""
        loop = asyncio.get_running_loop()
        if self._trial is None or (self._trial.done() and loop.time() - self._ended_s >= self._every_s):
            self._trial = loop.create_task(self._try())
        await asyncio.wait([self._trial], timeout=self._wait_s)
        if self._trial.done():
            return self._trial.result()
        return self._failure or StoreUnavailable(
            f"It did not take a write within {self._wait_s:g} seconds.", self._store.write_advice
        )

    async def _try(self) -> StoreUnavailable | None:
        failure = None
        try:
            await check_write(self._store)
        except StoreUnavailable as error:
            failure = error.with_traceback(None)
        if failure and str(failure) != str(self._failure):
            self._log.warning("the store takes no write", reason=str(failure))
        self._failure = failure
        self._ended_s = asyncio.get_running_loop().time()
        return self._failure
