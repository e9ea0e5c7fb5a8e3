"""The store: one protocol over two databases, SQLite (sqlite/store.py) and Postgres (postgres/store.py).

Reads outside a transaction see everything that any process committed before them. A transaction is a synchronous
function that `transact` runs; if it raises, everything it did is rolled back. A caller that is cancelled while the
transaction commits does not know the result and must read it from the store. A store that fails raises
StoreUnavailable, and then nothing was changed, unless it is StoreUncertain. A constraint or trigger that refuses a
change raises StoreRefused. No error shows the values of a statement.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Table, bindparam, text, update

from cadenza.core.errors import ExpectedError
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.statements import SelectByIds, Statement, Values

SERVER_CLOCK = Statement(text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)"))  # for Postgres only
REVISION_TABLE = "schema_version"  # which only migrations change
CHANGE_NOTHING = Statement(text(f"UPDATE {REVISION_TABLE} SET revision = revision"))  # noqa: S608 our own name
WAIT_S = 10.0  # how long SQLite waits for a lock

T = TypeVar("T")
Row = tuple[Any, ...]


class StoreUnavailable(ExpectedError):
    """The store cannot be opened, is locked or does not answer. The message says what is wrong and what to do."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem} {advice}".strip())
        self.problem = problem
        self.advice = advice


class StoreBusy(StoreUnavailable):
    """Another transaction held a lock for too long. The store works: another account, or a later try, may succeed."""


class ReportsBusy(StoreUnavailable):
    """As many reports of the account wait as may, or this one waited for too long. It may succeed later."""

    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__("Too many reports are running already.", "Wait until they end, and try again.")


class StoreUncertain(StoreUnavailable):
    """The connection was lost while a change was committed: the change may have been made."""


class StoreRefused(Exception):
    """A constraint or trigger refused a change. The whole transaction was rolled back."""


class Transaction(Protocol):
    """An open transaction, valid only inside the function that `Store.transact` runs."""

    combines_changes: bool  # whether one statement can make several (WITH … INSERT, UPDATE), which saves round trips

    def row(self, statement: Statement, values: Values) -> Row | None:
        """Return the first row, if there is one."""

    def rows(self, statement: Statement, values: Values) -> list[Row]: ...

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        """Return the rows of these ids, in the order of the ids or of the statement."""

    def change(self, statement: Statement, values: Values) -> int:
        """Return how many rows were changed."""

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        """Run the statement once for each set of values."""

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        """Insert rows, each with the values of the statement's columns. These are in the order of the table."""

    def announce(self) -> None:
        """Wake the watchers of all processes, this one's too, once the transaction is committed."""

    def overwrite_deleted(self) -> None:
        """From now on, overwrite what this connection deletes in the file of a SQLite store."""


class Store(Protocol):
    """A database with our schema. It opens connections when they are first needed; `close` closes them all."""

    # Whether processes of several machines use it. Then each process writes heartbeats and caches what it reads, and an
    # operator runs the migrations. Otherwise the processes lock files beside the database, read it in microseconds, and
    # migrate it when they start.
    is_shared_by_machines: bool
    writes_in_parallel: bool  # whether several transactions can write at once
    write_advice: str  # what to check when the store takes no writes

    @property
    def process_locks(self) -> ProcessLocks | None:
        """The lock files that show which processes are alive; None if processes write heartbeats instead."""

    @property
    def path(self) -> Path | None:
        """The file of a SQLite store."""

    async def row(self, statement: Statement, values: Values) -> Row | None:
        """Read the first row of a small query. SQLite runs it on the event loop's thread."""

    def change_mark(self) -> object:
        """A value that is another one after every change of a key, an account or the classes; None if it is not known.

        On SQLite it is another one after every commit of another process, and after every commit of this one but those
        of brief work that announces nothing: these change at most a balance, and lower it.
        """

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        """Read all rows of a query that reads few. SQLite runs it in a thread, Postgres waits up to 10 seconds."""

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        """Read all rows of a query whose work grows with the store: on connections that nothing else uses.

        Each account has one at a time (report_turns.py); without an account it is an operator's, or background work.
        A caller that is cancelled ends the query. Postgres waits up to 5 minutes for it. ReportsBusy if it must wait
        too long for its turn.
        """

    async def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        is_brief: bool = False,
        is_single: bool = False,
        lock_s: float | None = None,
    ) -> T:
        """Run `work` in one transaction and return its result once that is durable.

        SQLite runs brief work on the event loop's thread and everything else in a worker thread. Keys that are cached
        stay valid over brief work that announces nothing: it must not change what `FoundKey` shows, but for a balance.

        Postgres runs work of a single statement in one round trip, without BEGIN and COMMIT: its change stays, even if
        `work` then raises. It waits for a lock for `lock_s`, by default one second. After a deadlock or a migration
        Postgres runs `work` a second time, so `work` must have no effect but its statements.
        """

    def watch(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Inside the block, call `wake` on the event loop within 50 ms after an announcement by any process.

        It is also called when announcements may have been missed, and on SQLite whenever `change_mark` is another one
        or not known: after any commit of another process, and at times during our own.
        There is no payload: read the tables to see what changed. StoreUnavailable if watching cannot start; later
        failures are retried.
        """

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers, with or without a schema."""

    async def find_damage(self) -> str | None:
        """What SQLite finds wrong with its file, if anything. It reads the whole file. Postgres checks its own."""

    async def empty_log(self) -> bool:
        """Remove deleted data from the write-ahead log of a SQLite store. False if it is in use: try again later."""

    async def close(self) -> None: ...

    async def upgrade(self) -> Path | None:
        """Migrate the schema under a lock: of several processes that start together, one migrates.

        SQLite copies a store that has a schema first, and returns the path of the copy.
        """


async def check_write(store: Store) -> None:
    """Make a change that changes nothing; StoreUnavailable if the disk is full or the store is read-only."""
    await store.transact(lambda tx: tx.change(CHANGE_NOTHING, {}), is_brief=True, is_single=True)


async def compare_clocks(store: Store, clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """How many seconds `clock` is ahead of the clock of Postgres, and the error of that."""
    await store.ping()  # so that the trip needs no new connection
    before_s = clock()
    row = await store.row(SERVER_CLOCK, {})
    after_s = clock()
    assert row
    return (before_s + after_s) / 2 - row[0], (after_s - before_s) / 2


@cache
def _update(table: Table, *columns: str) -> Statement:
    [key] = table.primary_key
    of_row = update(table).where(key == bindparam("row"))
    return Statement(of_row.values({name: bindparam(f"new_{name}") for name in columns}))


def change_row(tx: Transaction, table: Table, key: str | bytes, **values: object) -> int:
    """Set these columns of the row with this primary key. Return how many rows were changed: 0 or 1."""
    return tx.change(_update(table, *values), {"row": key, **{f"new_{name}": new for name, new in values.items()}})


def unavailable(where: str, reason: str, advice: str) -> StoreUnavailable:
    """Build the error, with the advice that fits the reason better than the database's general one."""
    if reason == "no such table":
        advice = "Its schema is not there yet: run 'cadenza migrate'."
    elif "lock" in reason:
        advice = "Another process holds a lock on it: try again, or end that process."
    return StoreUnavailable(f"The store {where} cannot be used: {reason}.", advice)
