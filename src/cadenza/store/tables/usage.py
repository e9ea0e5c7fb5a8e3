"""Reads usage over a span of time from the sums by day: in total, by group, and by day and class."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select

from cadenza.core.spans import Span
from cadenza.core.usage_report import GROUPS_OF_ALL, Counters, GroupBy, KeyUsage, Report, day_name, sum_counters
from cadenza.store.schema import accounts, keys
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store
from cadenza.store.tables.keys import OF_WEB, WEB_NAME
from cadenza.store.tables.metered import add_up, span_values

FIELDS = Counters.__struct_fields__
COUNTERS = ["shown_prompt_tokens" if name == "prompt_tokens" else name for name in FIELDS]
BALANCE = Statement(select(accounts.c.balance_nano, accounts.c.created_at).where(accounts.c.id == bindparam("account")))
BALANCE_OF_ALL = Statement(select(total(accounts.c.balance_nano)))


def _key(key_id: ColumnElement[Any]) -> ColumnElement[Any]:
    is_web = key_id.in_(select(keys.c.id).where(*OF_WEB))
    return case((is_web, literal_column(f"'{WEB_NAME}'")), else_=key_id)


def email_of(account_id: ColumnElement[Any]) -> ColumnElement[Any]:
    return select(accounts.c.email).where(accounts.c.id == account_id).scalar_subquery()


def _report(group_by: GroupBy, *columns: str) -> Statement:
    queries: dict[GroupBy, Callable[[], Select[Any]]] = {
        "day": lambda: add_up(["day"], COUNTERS, *columns),
        "model": lambda: add_up(["class_id"], COUNTERS, *columns),
        "key": lambda: add_up(["key_id"], COUNTERS, *columns, shown=_key),
        "account": lambda: add_up(["account_id"], COUNTERS, *columns, shown=email_of),
    }
    return Statement(queries[group_by])


REPORTS = {group_by: _report(group_by, "account_id") for group_by in GROUPS_OF_ALL}
REPORTS_OF_ALL = {group_by: _report(group_by) for group_by in GROUPS_OF_ALL}
DAY_AND_CLASS = ("day", "class_id")
BY_DAY_AND_CLASS = Statement(lambda: add_up(DAY_AND_CLASS, COUNTERS, "account_id"))
BY_DAY_AND_CLASS_OF_KEY = Statement(lambda: add_up(DAY_AND_CLASS, COUNTERS, "account_id", "key_id"))
SPENT = Statement(lambda: add_up([], ["cost_nano"], "account_id"))


def _by_key() -> Select[tuple[Any, ...]]:
    key_id, *sums = add_up(["key_id"], COUNTERS, "account_id").subquery().c
    return (
        select(keys.c.id, keys.c.name, keys.c.prefix, *sums, func.count().over())
        .join_from(key_id.table, keys, keys.c.id == key_id)
        .order_by(sums[FIELDS.index("cost_nano")].desc(), sums[FIELDS.index("requests")].desc(), keys.c.id)
        .limit(bindparam("count"))
    )


BY_KEY = Statement(_by_key)


async def balance(store: Store, account_id: str) -> tuple[int, int]:
    """The balance of an account, and when the account was created."""
    row = await store.row(BALANCE, {"account": account_id})
    assert row
    return int(row[0]), int(row[1])


async def report(
    store: Store, account_id: str | None, span: Span, group_by: GroupBy, *, by_operator: bool = False
) -> Report:
    """Groups are ordered by day or by name; the totals are their sum. Without an account it is of all accounts.

    An operator's report does not wait for the turn of the account.
    """
    if account_id is None:
        [(balance_nano,)] = await store.report(BALANCE_OF_ALL, {})
        rows = await store.report(REPORTS_OF_ALL[group_by], span_values(span, account=""))
    else:
        balance_nano, _ = await balance(store, account_id)
        rows = await store.report(
            REPORTS[group_by], span_values(span, account=account_id), "" if by_operator else account_id
        )
    groups = [
        (day_name(name) if group_by == "day" else str(name), Counters(*map(int, counters))) for name, *counters in rows
    ]
    balance_nano = int(balance_nano)
    return Report(span, balance_nano, sum_counters(counters for _, counters in groups), group_by, groups)


async def by_day_and_class(
    store: Store, account_id: str, span: Span, key_id: str | None = None
) -> list[tuple[int, str, Counters]]:
    """For each day since the epoch and each class that was used on it, with one key or all. In no order."""
    statement = BY_DAY_AND_CLASS_OF_KEY if key_id else BY_DAY_AND_CLASS
    rows = await store.report(statement, span_values(span, account=account_id, key=key_id or ""), account_id)
    return [(int(day), class_id, Counters(*map(int, counters))) for day, class_id, *counters in rows]


async def by_key(store: Store, account_id: str, span: Span, count: int) -> tuple[list[KeyUsage], int]:
    """The keys that cost most, and how many keys were used."""
    rows = await store.report(BY_KEY, {**span_values(span, account=account_id), "count": count}, account_id)
    found = [
        KeyUsage(key_id, name, prefix, Counters(*map(int, counters))) for key_id, name, prefix, *counters, _ in rows
    ]
    return found, int(rows[0][-1]) if rows else 0


async def spent(store: Store, account_id: str, span: Span) -> int:
    [(cost_nano,)] = await store.report(SPENT, span_values(span, account=account_id), account_id)
    return int(cost_nano)
