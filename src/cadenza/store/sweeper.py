"""Finds what dead processes left behind and ends it; forgets old idempotency keys."""

import hashlib
import time
from functools import partial

from cadenza.core.records import Outcome
from cadenza.observe import Observer
from cadenza.store import files, ledger, processes, sweeps
from cadenza.store.processes import Presence
from cadenza.store.store import Store, StoreRefused, Transaction

FORGET_EVERY_S = 60.0


class Sweeper:
    """The sweeps of one process. Any process may sweep any dead one."""

    def __init__(self, store: Store, presence: Presence, observer: Observer) -> None:
        self._store = store
        self._presence = presence
        self._observer = observer
        self._suspects: set[str] = set()  # processes of the release before whose locks were free at the last sweep
        self._forget_at_s = 0.0

    async def sweep(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for name in await self._presence.find_dead():
            await self._sweep_process(name, now_ms)
        await self._sweep_old_holds(now_ms)
        if time.monotonic() >= self._forget_at_s:
            self._forget_at_s = time.monotonic() + FORGET_EVERY_S
            await self._store.transact(lambda tx: ledger.forget_old_keys(tx, now_ms))

    async def _sweep_process(self, name: str, now_ms: int) -> None:
        def sweep(tx: Transaction) -> list[Outcome] | None:
            if not self._presence.claim(tx, name):
                return None
            outcomes = sweeps.free_process(tx, name, now_ms)
            processes.remove(tx, name)
            return outcomes

        try:
            outcomes = await self._store.transact(sweep)
        except StoreRefused:  # it is alive after all, and has just reserved credit
            self._observer.log.warning("a process that seemed dead is alive", process=name)
            return
        if outcomes is not None:
            self._record(outcomes, name)

    async def _sweep_old_holds(self, now_ms: int) -> None:
        """End the holds of processes of the release before. One that lost its lock has until the next sweep."""
        owners = {owner for (owner,) in await self._store.rows(sweeps.OLD_OWNERS, {})}
        dead = {owner for owner in owners if await self._is_old_owner_dead(owner)}
        for owner in sorted(dead if self._store.is_sqlite else dead & self._suspects):
            outcomes = await self._store.transact(partial(sweeps.end_old_holds, owner=owner, now_ms=now_ms))
            self._record(outcomes, owner)
        self._suspects = dead

    async def _is_old_owner_dead(self, owner: str) -> bool:
        """Each had a lock of its name: a file beside a SQLite store, an advisory lock on Postgres."""
        if self._store.path:
            return files.is_unlocked(self._store.path, owner)
        number = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], signed=True)
        found = await self._store.row(sweeps.TRY_OLD_LOCK, {"number": number})
        return found == (True,)

    def _record(self, outcomes: list[Outcome], name: str) -> None:
        self._observer.log.warning("freed the credit of a process that died", process=name, charged=len(outcomes))
        for outcome in outcomes:
            self._observer.record(outcome)
