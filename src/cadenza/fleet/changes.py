"""Changes of keys, accounts and classes: once one is made, no process relies on what was before.

A process on Postgres keeps keys in its memory while it is fresh. So whoever changes something waits until every process
has dropped what it kept. One that does not say so in time is not fresh any more, and asks the store for every request:
that is no error, and neither is a store that does not answer meanwhile. On SQLite nothing is kept.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import bindparam, select

from cadenza.fleet.presence import USUAL_BOUNDS, Bounds
from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, StoreUnavailable, Transaction
from cadenza.store.tables import epochs

MARGIN_S = 0.5
LOOK_S = (0.005, 0.05)  # how long to wait before looking again: first, and at most
TRIES = 5  # many changes at once wait for each other
BEHIND = Statement(select(schema.processes.c.name).where(schema.processes.c.seen < bindparam("number")).limit(1))

T = TypeVar("T")


async def make_change(store: Store, work: Callable[[Transaction], T], bounds: Bounds = USUAL_BOUNDS) -> T:
    """Run work that changes keys, accounts or classes, in one transaction. Return once it holds in every process."""

    def change(tx: Transaction) -> tuple[T, int]:
        done = work(tx)
        number = epochs.begin_next(tx, epochs.CHANGES)  # last: it locks out every other change until the commit
        tx.announce()
        return done, number

    done, number = await _change(store, change)
    if store.is_shared_by_machines:
        await _until_followed(store, number, bounds.fresh_s + MARGIN_S)
    return done


async def _change(store: Store, change: Callable[[Transaction], tuple[T, int]]) -> tuple[T, int]:
    for _ in range(TRIES - 1):
        with suppress(StoreBusy):
            return await store.transact(change)
    return await store.transact(change)


async def _until_followed(store: Store, number: int, wait_s: float) -> None:
    look_s, most_s = LOOK_S
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while await _is_behind(store, number):
                await asyncio.sleep(look_s)
                look_s = min(2 * look_s, most_s)


async def _is_behind(store: Store, number: int) -> bool:
    """Whether any process may still rely on what was before this epoch."""
    try:
        return await store.row(BEHIND, {"number": number}) is not None
    except StoreUnavailable:
        return True
