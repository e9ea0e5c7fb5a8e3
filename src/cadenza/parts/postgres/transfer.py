"""Copies all rows of a SQLite store to a Postgres store, in one transaction.

The source's write lock is held meanwhile, and nothing in it is changed. The target is committed only after its rows
were read back and equal the source's. A target that already has these rows is not changed.

No service may use either store meanwhile. A service that starts on the target waits for a lock and gives up. A service
that starts on the source is found by its lock file, which is checked before the copy, before the commit and after it.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec
from sqlalchemy import Table

from cadenza.store import schema
from cadenza.store.address import Carried
from cadenza.store.live_processes import SELECT, find_live
from cadenza.store.month_end import postgres_trigger
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.store import WAIT_S, Row, StoreUnavailable

LEFT_BEHIND = (
    schema.processes,
    schema.reserves,
    schema.marks,
    schema.cap_holds,
)  # rows of serving processes; none is running
FILLED_BY_MIGRATIONS = (schema.epochs,)
CARRIED = [table for table in schema.metadata.sorted_tables if table not in LEFT_BEHIND]
ROWS_AT_ONCE = 5000
UNFINISHED = """
    SELECT (SELECT COUNT(*) FROM accounts WHERE held_nano <> 0) + (SELECT COUNT(*) FROM marks)"""
CONNECTION_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

Connection = Any  # asyncpg has no types


class Sum(msgspec.Struct):
    """The number of rows of a table and a hash of their values, which does not depend on their order."""

    rows: int = 0
    total: int = 0

    def add(self, row: Row) -> None:
        self.rows += 1
        self.total += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest())


async def transfer(database: Path, url: str) -> Carried:
    """Copy every row. StoreUnavailable, without a change, unless the target is empty or has exactly these rows."""
    with _locked(database) as source:
        _check_source(database, source)
        async with _connected(url) as target, target.transaction():
            await target.execute(f"SET LOCAL lock_timeout = '{round(WAIT_S)}s'")
            await _lock_target(target)
            is_new = not await target.fetchval("SELECT EXISTS (SELECT FROM accounts)")
            if is_new:
                sums = await _copy(source, target)
            else:
                await _check_accounts(source, target)
                sums = {table.name: _sum_source(source, table) for table in CARRIED}
            await _compare(sums, target)
            _require_unused(
                database, f"Nothing was carried over, because a service was started on {database} meanwhile:"
            )
        _require_unused(
            database,
            f"Everything was carried over, but a service was started on {database} at the last moment:",
            "stop it; if it has served anything, empty the target and run this command again.",
        )
    return Carried({name: found.rows for name, found in sums.items()}, is_new)


def _check_source(database: Path, source: sqlite3.Connection) -> None:
    """A process that starts after this check cannot write, because the write lock is held."""
    _require_unused(database, f"A service is running on {database}:")
    [(unfinished,)] = source.execute(UNFINISHED).fetchall()
    if unfinished:
        raise StoreUnavailable(
            f"A process that served from {database} died and left credit held:",
            "start the service on it and stop it, which ends what was left, and run this command again.",
        )


def _require_unused(database: Path, problem: str, advice: str = "stop it, and run this command again.") -> None:
    if ProcessLocks(database).live():
        raise StoreUnavailable(problem, advice)


async def _lock_target(target: Connection) -> None:
    """Lock the accounts, and the processes, so that no service can start on the target before the end."""

    lock = "LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE; LOCK TABLE processes IN SHARE MODE"
    if services := await find_live(lambda: target.fetch(SELECT), lambda: target.execute(lock)):
        names = ", ".join(one.name for one in services)
        raise StoreUnavailable(
            f"Nothing was carried over, because a service runs on the target ({names}):",
            "stop it, and run this command again.",
        )


async def _check_accounts(source: sqlite3.Connection, target: Connection) -> None:
    ours = {account_id for (account_id,) in source.execute("SELECT id FROM accounts")}
    foreign = [record["id"] for record in await target.fetch("SELECT id FROM accounts") if record["id"] not in ours]
    if foreign:
        raise StoreUnavailable(
            f"The target has accounts that the source does not have; their number: {len(foreign)}.",
            "Give it an empty database.",
        )


async def _copy(source: sqlite3.Connection, target: Connection) -> dict[str, Sum]:
    for table in FILLED_BY_MIGRATIONS:
        await target.execute(f"DELETE FROM {table.name}")  # noqa: S608 our own name
    sums: dict[str, Sum] = {}
    for table in CARRIED:
        found = sums[table.name] = Sum()
        await target.copy_records_to_table(
            table.name, columns=table.c.keys(), records=_counted(_rows_of(source, table), found)
        )
        if (column := table.autoincrement_column) is not None:
            highest = f"SELECT max({column.name}) FROM {table.name}"  # noqa: S608 our own names
            sequence = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
            await target.execute(f"SELECT setval({sequence}, ({highest}))")
    if (ends_at := await target.fetchval("SELECT max(ends_at) FROM closed_months")) is not None:
        for statement in postgres_trigger(ends_at):
            await target.execute(statement)
    return sums


async def _compare(sums: dict[str, Sum], target: Connection) -> None:
    found = {table.name: await _sum_target(target, table) for table in CARRIED}
    different = [name for name, one in found.items() if one != sums[name]]
    if different:
        raise StoreUnavailable(
            f"The target has other rows than the source; in: {', '.join(different)}.",
            "It was used since, or the source was. Nothing was changed. Give an empty database.",
        )


def _sum_source(source: sqlite3.Connection, table: Table) -> Sum:
    found = Sum()
    for _ in _counted(_rows_of(source, table), found):
        pass
    return found


async def _sum_target(target: Connection, table: Table) -> Sum:
    found = Sum()
    cursor = await target.cursor(_select(table))
    while records := await cursor.fetch(ROWS_AT_ONCE):
        for record in records:
            found.add(tuple(record))
    return found


def _rows_of(source: sqlite3.Connection, table: Table) -> Iterator[Row]:
    """The rows with the types of Postgres: SQLite has numbers where Postgres has booleans."""
    kinds: list[Callable[[Any], Any]] = [column.type.python_type for column in table.c]
    for row in source.execute(_select(table)):
        yield tuple(None if value is None else kind(value) for kind, value in zip(kinds, row, strict=True))


def _counted(rows: Iterator[Row], found: Sum) -> Iterator[Row]:
    for row in rows:
        found.add(row)
        yield row


def _select(table: Table) -> str:
    return f"SELECT {', '.join(table.c.keys())} FROM {table.name}"  # noqa: S608 our own names


@contextlib.contextmanager
def _locked(database: Path) -> Iterator[sqlite3.Connection]:
    """Open the source and hold its write lock for the block, so that nothing in it changes."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=WAIT_S, isolation_level=None)) as source:
            source.execute("BEGIN IMMEDIATE")
            yield source
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The store {database} cannot be read: {error}.") from None


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    """A new connection. It caches no statements, so that a pooler may be in between."""
    try:
        target = await asyncpg.connect(url, timeout=WAIT_S, statement_cache_size=0)
        try:
            yield target
        finally:
            await target.close(timeout=WAIT_S)
    except CONNECTION_ERRORS as error:
        reason = str(error).partition("\n")[0].partition(":")[0] or "no connection"
        raise StoreUnavailable(
            f"The target cannot be used: {reason}.", "Run the command again: it carries over everything or nothing."
        ) from None
