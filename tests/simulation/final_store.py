"""The end of a run, on a copy of its database: its month is closed, its sums by day are those of its requests, and all
rules of `cadenza ledger check` hold.

The month is sealed in the middle of the entries. The rest is written after that, the first by a clock that is behind.
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from cadenza.core.spans import Span
from cadenza.ledger import months
from cadenza.ledger.check import rules_of
from cadenza.store import schema
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, Store, Transaction
from tests.simulation.database import Database

DAY_MS = 86_400_000
MONTH, MONTH_START_MS, MONTH_END_MS = "2026-10", 1_790_812_800_000, 1_793_491_200_000
USAGE_KEYS = ("account_id", "key_id", "class_id", "provider", "model")
USAGE_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano", "provider_cost_nano")
T = TypeVar("T")
Fail = Callable[[str, str], None]


class FinalStore:
    """The store and the transaction that the functions get. Nothing waits."""

    path = Path("simulated")

    def __init__(self, database: Any) -> None:
        self._database = database

    def execute(self, statement: Statement, values: Values) -> Any:
        return self._database.execute(statement.sqlite_text, statement.sqlite_values(values))

    def row(self, statement: Statement, values: Values) -> Row | None:
        found: Row | None = self.execute(statement, values).fetchone()
        return found

    def change(self, statement: Statement, values: Values) -> int:
        changed: int = self.execute(statement, values).rowcount
        return changed

    def change_each(self, statement: Statement, rows: list[Values]) -> None:
        for values in rows:
            self.change(statement, values)


class FinalTransaction(FinalStore):
    def rows(self, statement: Statement, values: Values) -> list[Row]:
        found: list[Row] = self.execute(statement, values).fetchall()
        return found


class AsyncStore(FinalStore):
    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        found: list[Row] = self.execute(statement, values).fetchall()
        return found

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        return await self.rows(statement, values)

    async def transact(self, work: Callable[[Transaction], T], **_: object) -> T:
        return work(cast("Transaction", FinalTransaction(self._database)))


def check_final_store(database: Database, fail: Fail) -> None:
    copied = database.copy()
    entries, usage, days = ([*map(dict, database.rows(name))] for name in ("entries", "usage", "usage_days"))
    _close_month(copied, entries, fail)
    _check_days(usage, days, fail)
    for rule, query in rules_of("sqlite").items():
        if found := copied.execute(query).fetchone():
            fail(rule, str(found))
    copied.close()


def _close_month(database: Any, entries: list[dict[str, Any]], fail: Fail) -> None:
    """The closed month has what was written before the seal and dated before its end, and no more."""
    triggers = database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute("DELETE FROM entries")
    store, half = cast("Store", AsyncStore(database)), len(entries) // 2
    early, late = entries[:half], [dict(one) for one in entries[half:]]
    for one in late[:1]:
        one["created_at"] = min(one["created_at"], MONTH_END_MS - 1)
    _insert(database, "entries", [tuple(one.values()) for one in early])
    _ran(months.seal(store, MONTH, Span(MONTH_START_MS, MONTH_END_MS), MONTH_END_MS))
    _insert(database, "entries", [tuple(one.values()) for one in late])
    [sealed] = _ran(months.list_months(store))
    closed = _ran(months.compute(store, sealed, None, MONTH_END_MS))
    _ran(months.add_balances(store, MONTH, _ran(months.balances_at(store, MONTH_END_MS, None))))
    _ran(store.transact(lambda tx: months.close(tx, closed)))
    due, balances = Counter[str](), Counter[str]()
    for one in early:
        if one["created_at"] < MONTH_END_MS:
            due[one["origin"] or one["kind"]] += one["amount_nano"]
            balances[one["account_id"]] += one["amount_nano"]
    found = {origin: total.amount_nano for origin, total in closed.month_sums.by_origin.items()}
    if found != dict(due) or closed.closing_nano != due.total():
        fail("a closed month has the entries from before its seal", f"{found}, not {dict(due)}")
    stored = {row.account_id: row.balance_nano for row in _ran(months.closed_balances(store, MONTH))}
    if stored != dict(balances):
        fail("a closed month has the balances of its end", f"{stored}, not {dict(balances)}")
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


def _insert(database: Any, name: str, rows: list[tuple[Any, ...]]) -> None:
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
