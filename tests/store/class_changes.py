"""Changes of a class in a process that kills itself in the middle of the transaction."""

import asyncio
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

import pytest

from cadenza.control.class_changes import ClassRules, PromotionOrder, RollbackOrder, adopt, promote, roll_back
from cadenza.core.classes import ClassVersion
from cadenza.core.records import Operator, Route
from cadenza.store.address import open_store
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import class_versions

ANN = Operator("ann")
NOW_MS = 1_800_000_000_000
OLD, NEW = Route("acme", "large", 1000, 100), Route("acme", "huge", 2000, 200)
VERSION = ClassVersion(class_id="forte", routes=(OLD,), character="Be kind.", actor="config", created_at=1)
RULES = ClassRules(providers={"acme": "contract"})
PINNED = ClassRules(pin="cadenza.toml, line 3", providers={"acme": "contract"})
T = TypeVar("T")


def forced(route: Route = NEW) -> PromotionOrder:
    return PromotionOrder(candidate=route, forced="a test")


@pytest.fixture
async def seeded(store: Store) -> Store:
    """The store after the first start: version 1 of forte."""
    await store.transact(lambda tx: class_versions.add_state(tx, class_versions.add(tx, VERSION), 1))
    return store


class DyingTransaction:
    """A real transaction in which the process is killed before a statement."""

    def __init__(self, tx: Transaction, at: int) -> None:
        self._tx = tx
        self._left = at

    def __getattr__(self, name: str) -> Any:
        if name in {"row", "rows", "change", "announce"}:
            self._step()
        return getattr(self._tx, name)

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """A real store whose transactions kill the process."""

    def __init__(self, store: Store, at: int) -> None:
        self._store = store
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, work: Callable[[Transaction], T], **options: Any) -> T:
        return await self._store.transact(
            lambda tx: work(cast("Transaction", DyingTransaction(tx, self._at))), **options
        )


class PatientStore:
    """A real store whose first transaction begins when all parties of the barrier have read what they decide on."""

    def __init__(self, store: Store, barrier: asyncio.Barrier) -> None:
        self._store = store
        self._barrier: asyncio.Barrier | None = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, work: Callable[[Transaction], T], **options: Any) -> T:
        if barrier := self._barrier:
            self._barrier = None
            await barrier.wait()
        return await self._store.transact(work, **options)


async def main(line: Connection, url: str, step: str, at: str) -> None:
    """Make a change, and say `done`, unless the process is killed before statement number `at`."""
    opened = open_store(url, 60.0)
    store: Any = DyingStore(opened, int(at))
    match step:
        case "adopt":
            await adopt(store, "forte", PINNED, ANN, NOW_MS)
        case "promote":
            await promote(store, "forte", RULES, forced(), ANN, NOW_MS)
        case "rollback":
            await roll_back(store, "forte", RULES, RollbackOrder(), ANN, NOW_MS)
    await opened.close()
    line.send("done")
