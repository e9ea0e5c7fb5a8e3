"""Changes of a class in a process that kills itself in the middle of the transaction."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from cadenza.control.classes import ClassRules, PromotionOrder, RollbackOrder, adopt, promote, roll_back
from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route
from cadenza.store.address import open_store
from cadenza.store.statements import SelectByIds, Statement, Values
from cadenza.store.store import Row, Store, Transaction

NOW_MS = 1_800_000_000_000
OLD, NEW = Route("acme", "large", 1000, 100), Route("acme", "huge", 2000, 200)
VERSION = ClassVersion(class_id="forte", routes=(OLD,), character="Be kind.", actor="config", created_at=1)
RULES = ClassRules(providers={"acme": "contract"})
PINNED = ClassRules(pin="cadenza.toml, line 3", providers={"acme": "contract"})
T = TypeVar("T")


def forced(route: Route = NEW, share: int = 100) -> PromotionOrder:
    return PromotionOrder(candidate=route, suite="starter", suite_digest=b"", share=share, forced="a test")


class DyingTransaction:
    """A real transaction in which the process is killed before a statement."""

    def __init__(self, tx: Transaction, at: int) -> None:
        self._tx = tx
        self._left = at
        self.combines_changes = tx.combines_changes

    def row(self, statement: Statement, values: Values) -> Row | None:
        self._step()
        return self._tx.row(statement, values)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        self._step()
        return self._tx.rows(statement, values)

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        return self._tx.rows_by_ids(select, ids, values)

    def change(self, statement: Statement, values: Values) -> int:
        self._step()
        return self._tx.change(statement, values)

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        self._tx.change_each(statement, values)

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        self._tx.insert_rows(statement, rows)

    def announce(self) -> None:
        self._step()
        self._tx.announce()

    def overwrite_deleted(self) -> None:
        self._tx.overwrite_deleted()

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
        return await self._store.transact(lambda tx: work(DyingTransaction(tx, self._at)), **options)


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
            await adopt(store, "forte", PINNED, "ann", NOW_MS)
        case "promote":
            await promote(store, "forte", RULES, forced(), "ann", NOW_MS)
        case "canary":
            await promote(store, "forte", RULES, forced(share=5), "ann", NOW_MS)
        case "rollback":
            await roll_back(store, "forte", RULES, RollbackOrder(), "ann", NOW_MS)
    await opened.close()
    line.send("done")
