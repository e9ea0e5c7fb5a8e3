"""Changes of keys, accounts and classes: when `make_change` returns, no process uses the state from before it.

A process on Postgres caches keys while it is fresh. So `make_change` waits until every process has reported the new
epoch. A process that does not report it in time is no longer fresh and asks the store for every request: that is no
error, and neither is a store that does not answer meanwhile. On SQLite a request sees
the epoch of every change (fleet/key_cache.py).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import bindparam, select

from cadenza.fleet.presence import USUAL_BOUNDS, HeartbeatBounds
from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, StoreUnavailable, Transaction
from cadenza.store.tables import epochs

MARGIN_S = 0.5
LOOK_AGAIN_S = 0.005  # doubled each time
LOOK_AGAIN_S_MAX = 0.05
TRIES = 5  # many changes at once wait for each other
BEHIND = Statement(select(schema.processes.c.name).where(schema.processes.c.seen < bindparam("number")).limit(1))

T = TypeVar("T")


async def make_change(store: Store, work: Callable[[Transaction], T], bounds: HeartbeatBounds = USUAL_BOUNDS) -> T:
    """Run work that changes keys, accounts or classes, in one transaction. Return when it applies in every process."""

    def change(tx: Transaction) -> tuple[T, int]:
        done = work(tx)
        number = epochs.begin_next(tx, epochs.CHANGES)  # last: it locks out every other change until the commit
        tx.announce()
        return done, number

    done, number = await _change(store, change)
    if store.is_shared_by_machines:
        await _wait_until_seen(store, number, bounds.fresh_s + MARGIN_S)
    return done


async def _change(store: Store, change: Callable[[Transaction], tuple[T, int]]) -> tuple[T, int]:
    for _ in range(TRIES - 1):
        with suppress(StoreBusy):
            return await store.transact(change)
    return await store.transact(change)


async def _wait_until_seen(store: Store, number: int, wait_s: float) -> None:
    pause_s = LOOK_AGAIN_S
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while True:
                with suppress(StoreUnavailable):
                    if await store.row(BEHIND, {"number": number}) is None:
                        return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LOOK_AGAIN_S_MAX)
