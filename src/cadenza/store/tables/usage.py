"""Reads the metering rows: usage over a span of time, in total, by group, and by day and class."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, literal_column, select

from cadenza.core.records import SEARCH
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import Counters, GroupBy, KeyUsage, Report, day_name, sum_counters
from cadenza.store.schema import accounts, keys
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store
from cadenza.store.tables.keys import OF_WEB, WEB_NAME
from cadenza.store.tables.metered import REQUESTS, Metered, add_up

Group = Callable[[Metered], ColumnElement[object]]

FIELDS = Counters.__struct_fields__
BALANCE = Statement(select(accounts.c.balance_nano, accounts.c.created_at).where(accounts.c.id == bindparam("account")))
BALANCE_OF_ALL = Statement(select(total(accounts.c.balance_nano)))


def prompt_tokens(rows: Metered) -> ColumnElement[int]:
    """A search is charged as one prompt token at the price of a search. It is left out of the prompt tokens."""
    return case((rows.c.class_id == literal_column(f"'{SEARCH}'"), 0), else_=rows.c.prompt_tokens)


PROMPT_TOKENS = prompt_tokens(REQUESTS)


def _counters(rows: Metered) -> list[ColumnElement[int]]:
    """In the order of FIELDS."""
    columns = rows.c
    return [
        rows.requests,
        prompt_tokens(rows),
        columns.cached_tokens,
        columns.completion_tokens,
        columns.cost_nano,
    ]


def _key(rows: Metered) -> ColumnElement[object]:
    is_web = rows.c.key_id.in_(select(keys.c.id).where(*OF_WEB))
    return case((is_web, literal_column(f"'{WEB_NAME}'")), else_=rows.c.key_id)


def _email(rows: Metered) -> ColumnElement[object]:
    return select(accounts.c.email).where(accounts.c.id == rows.c.account_id).scalar_subquery()


GROUPS: dict[GroupBy, Group] = {
    "day": lambda rows: rows.c.started_at // DAY_MS,
    "model": lambda rows: rows.c.class_id,
    "key": _key,
    "account": _email,
}


def _report(group: Group, where: Callable[[Metered], Sequence[ColumnElement[bool]]]) -> Statement:
    return Statement(lambda: add_up(lambda rows: [group(rows)], _counters, where))


REPORTS = {name: _report(group, lambda rows: rows.of_span) for name, group in GROUPS.items()}
REPORTS_OF_ALL = {name: _report(group, lambda rows: rows.in_span) for name, group in GROUPS.items()}


def _day_and_class(rows: Metered) -> list[ColumnElement[object]]:
    return [GROUPS["day"](rows), rows.c.class_id]


BY_DAY_AND_CLASS = Statement(lambda: add_up(_day_and_class, _counters, lambda rows: rows.of_span))
BY_DAY_AND_CLASS_OF_KEY = Statement(
    lambda: add_up(_day_and_class, _counters, lambda rows: (*rows.of_span, rows.c.key_id == bindparam("key")))
)
SPENT = Statement(lambda: add_up(lambda _: [], lambda rows: [rows.c.cost_nano], lambda rows: rows.of_span))


def _by_key() -> Select[tuple[Any, ...]]:
    key_id, *sums = add_up(lambda rows: [rows.c.key_id], _counters, lambda rows: rows.of_span).subquery().c
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
        rows = await store.report(REPORTS_OF_ALL[group_by], _values("", span))
    else:
        balance_nano, _ = await balance(store, account_id)
        rows = await store.report(REPORTS[group_by], _values(account_id, span), "" if by_operator else account_id)
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
    values = {**_values(account_id, span), **({"key": key_id} if key_id else {})}
    rows = await store.report(statement, values, account_id)
    return [(int(day), class_id, Counters(*map(int, counters))) for day, class_id, *counters in rows]


async def by_key(store: Store, account_id: str, span: Span, count: int) -> tuple[list[KeyUsage], int]:
    """The keys that cost most, and how many keys were used."""
    rows = await store.report(BY_KEY, {**_values(account_id, span), "count": count}, account_id)
    found = [
        KeyUsage(key_id, name, prefix, Counters(*map(int, counters))) for key_id, name, prefix, *counters, _ in rows
    ]
    return found, int(rows[0][-1]) if rows else 0


async def spent(store: Store, account_id: str, span: Span) -> int:
    [(cost_nano,)] = await store.report(SPENT, _values(account_id, span), account_id)
    return int(cost_nano)


def _values(account_id: str, span: Span) -> dict[str, str | int]:
    return {"account": account_id, "start": span.start_ms, "end": span.end_ms}
