"""Finds what dead processes left behind and ends it; forgets old idempotency keys."""

import contextlib
import hashlib
import time
from functools import partial

from cadenza.core.records import Outcome
from cadenza.fleet import presence as processes
from cadenza.fleet.presence import Presence
from cadenza.ledger import sweeps, transaction
from cadenza.observe import Observer
from cadenza.store.store import Store, StoreBusy, StoreRefused

FORGET_EVERY_S = 60.0


class Sweeper:
    """The sweeps of one process. Any process may sweep any dead one."""

    def __init__(self, store: Store, presence: Presence, observer: Observer) -> None:
        self._store = store
        self._presence = presence
        self._observer = observer
        self._unfinished: set[str] = set()  # processes of which the last sweep left out some accounts
        self._suspects: set[str] = set()  # processes of the release before whose locks were free at the last sweep
        self._forget_at_s = 0.0

    async def sweep(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for name in await self._presence.find_dead():
            with contextlib.suppress(StoreBusy):  # its row is locked: the next sweep comes back to it
                await self._sweep_process(name, now_ms)
        with contextlib.suppress(StoreBusy):
            await self._sweep_old_holds(now_ms)
        if time.monotonic() >= self._forget_at_s:
            self._forget_at_s = time.monotonic() + FORGET_EVERY_S
            await self._store.transact(lambda tx: transaction.forget_old_keys(tx, now_ms))

    async def _sweep_process(self, name: str, now_ms: int) -> None:
        if not await self._store.transact(lambda tx: self._presence.fence(tx, name), is_brief=True):
            return
        charged = 0

        def record(outcomes: list[Outcome]) -> None:
            nonlocal charged
            charged += len(outcomes)
            self._record(outcomes)

        left_out = await sweeps.free_process(self._store, name, now_ms, record)
        if left_out:
            if name in self._unfinished:
                self._observer.log.warning(
                    "accounts of a process that died are locked", process=name, accounts=len(left_out)
                )
            self._unfinished.add(name)
            return
        self._unfinished.discard(name)
        try:
            await self._store.transact(lambda tx: processes.remove(tx, name), is_brief=True)
        except StoreRefused:  # another sweep has not finished, or a process of the release before is alive
            return
        self._observer.log.warning("freed the credit of a process that died", process=name, charged=charged)

    async def _sweep_old_holds(self, now_ms: int) -> None:
        """End the holds of processes of the release before. One that lost its lock has until the next sweep."""
        owners = {owner for (owner,) in await self._store.rows(sweeps.OLD_OWNERS, {})}
        dead = {owner for owner in owners if await self._is_old_owner_dead(owner)}
        for owner in sorted(dead if self._store.process_locks else dead & self._suspects):
            charged = 0
            while outcomes := await self._store.transact(partial(sweeps.end_old_holds, owner=owner, now_ms=now_ms)):
                charged += len(outcomes)
                self._record(outcomes)
            self._observer.log.warning("freed the credit of a process that died", process=owner, charged=charged)
        self._suspects = dead

    async def _is_old_owner_dead(self, owner: str) -> bool:
        """Each had a lock of its name: a file beside a SQLite store, an advisory lock on Postgres."""
        if locks := self._store.process_locks:
            return locks.remove_if_free(owner)
        number = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], signed=True)
        found = await self._store.row(sweeps.TRY_OLD_LOCK, {"number": number})
        return found == (True,)

    def _record(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._observer.record(outcome)
