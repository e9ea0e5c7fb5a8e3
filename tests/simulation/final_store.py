"""The end of a run, on a copy of its database: its months are closed, its sums by day are those of its requests, and
all rules of `cadenza ledger check` hold.

The first month is sealed in the middle of the entries. The rest is written after that, the first of it by a clock that
is behind.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from cadenza.core.spans import Span
from cadenza.ledger.check import rules_of
from cadenza.ledger.months import list_months
from cadenza.parts.books import closing
from cadenza.parts.books.sums import balances_at, closed_balances, sums_of
from cadenza.store import schema
from cadenza.store.sqlite.store import SqliteTransaction
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, Store, StoreRefused, Transaction
from tests.simulation.database import Database

DAY_MS = 86_400_000
MONTH, MONTH_START_MS, MONTH_END_MS = "2026-10", 1_790_812_800_000, 1_793_491_200_000
NEXT_MONTH, NEXT_END_MS = "2026-11", 1_796_083_200_000
USAGE_KEYS = ("account_id", "key_id", "class_id", "provider", "model")
USAGE_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano", "provider_cost_nano")
T = TypeVar("T")
Fail = Callable[[str, str], None]


class FinalStore:
    """The store that the functions get. Nothing waits."""

    path = Path("simulated")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._tx = SqliteTransaction(connection)

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        return self._tx.rows(statement, values)

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        return self._tx.rows(statement, values)

    async def transact(self, work: Callable[[Transaction], T], **_: object) -> T:
        return work(self._tx)


def check_final_store(database: Database, fail: Fail) -> None:
    copied = database.copy()
    entries, usage, days = ([*map(dict, database.rows(name))] for name in ("entries", "usage", "usage_days"))
    try:
        _close_months(copied, entries, fail)
    except (AssertionError, StoreRefused) as error:
        fail("a month that is over can be closed", repr(error))
    _check_days(usage, days, fail)
    for rule, query in rules_of("sqlite").items():
        if found := copied.execute(query).fetchone():
            fail(rule, str(found))
    copied.close()


def _close_months(database: sqlite3.Connection, entries: list[dict[str, Any]], fail: Fail) -> None:
    """A month has what was written before its seal and dated before its end, and the next month has the rest."""
    triggers = database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute("DELETE FROM entries")
    store, half = cast("Store", FinalStore(database)), len(entries) // 2
    early, late = entries[:half], [dict(one) for one in entries[half:]]
    for one in late[:1]:
        one["created_at"] = min(one["created_at"], MONTH_END_MS - 1)
    before, balances = None, Counter[str]()
    first = [one for one in early if one["created_at"] < MONTH_END_MS]
    rest = [one for one in early if one["created_at"] >= MONTH_END_MS] + late
    _insert(database, "entries", [tuple(one.values()) for one in early])
    for month, start_ms, end_ms, later, due in (
        (MONTH, MONTH_START_MS, MONTH_END_MS, late, first),
        (NEXT_MONTH, MONTH_END_MS, NEXT_END_MS, [], rest),
    ):
        _ran(closing.seal(store, month, Span(start_ms, end_ms), end_ms))
        _insert(database, "entries", [tuple(one.values()) for one in later])
        sealed = next(one for one in _ran(list_months(store)) if one.month == month)
        closed = _ran(closing.compute(store, sealed, before, end_ms))
        _ran(closing.add_balances(store, month, _ran(balances_at(store, end_ms, before))))
        _ran(store.transact(lambda tx, closed=closed: closing.end(tx, closed)))  # type: ignore[misc]
        sums = Counter[str]()
        for one in due:
            sums[one["origin"] or one["kind"]] += one["amount_nano"]
            balances[one["account_id"]] += one["amount_nano"]
        found = {origin: total.amount_nano for origin, total in sums_of(closed).by_origin.items()}
        if found != dict(sums) or closed.closing_nano != balances.total():
            fail("a closed month has the entries from before its seal", f"{month}: {found}, not {dict(sums)}")
        stored = {row.account_id: row.balance_nano for row in _ran(closed_balances(store, month))}
        if stored != dict(balances):
            fail("a closed month has the balances of its end", f"{month}: {stored}, not {dict(balances)}")
        before = closed
    [count] = database.execute("SELECT COUNT(*) FROM entries").fetchone()
    if count != len(entries):
        fail("every entry stays", f"{count} of {len(entries)}")


def _check_days(usage: list[dict[str, Any]], days: list[dict[str, Any]], fail: Fail) -> None:
    """What was added with each charge is what the metering rows of a day add up to."""
    due, found = Counter[Any](), Counter[Any]()
    for one in usage:
        is_counted = one["prompt_tokens"] + one["completion_tokens"] > 0
        _add(due, one, one["started_at"] // DAY_MS, 1)
        key = (*[one[name] for name in USAGE_KEYS], one["started_at"] // DAY_MS)
        due[*key, "failed_requests"] += one["status"] >= 500
        due[*key, "estimated_requests"] += is_counted and one["estimated"]
    for one in days:
        _add(found, one, one["day"], one["requests"])
        for name in ("failed_requests", "estimated_requests"):
            found[*[one[name] for name in USAGE_KEYS], one["day"], name] += one[name]
    if found != due:
        different = [(key, found[key], due[key]) for key in found | due if found[key] != due[key]]
        fail("the sums by day are those of the requests", str(different[0]))


def _add(sums: "Counter[Any]", row: dict[str, Any], day: int, requests: int) -> None:
    key = (*[row[name] for name in USAGE_KEYS], day)
    sums[*key, "requests"] += requests
    for name in USAGE_SUMS:
        sums[*key, name] += row[name] or 0


def _insert(database: sqlite3.Connection, name: str, rows: list[tuple[Any, ...]]) -> None:
    columns = [*schema.metadata.tables[name].c.keys()]
    insert = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    database.executemany(insert, rows)


def _ran(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")
