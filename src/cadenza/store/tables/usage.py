"""Reads the metering rows: usage over a span of time, in total, by group, and by day and class."""

from sqlalchemy import ColumnElement, bindparam, case, func, literal_column, select, text

from cadenza.core.records import SEARCH
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import Counters, GroupBy, KeyUsage, Report, day_name, sum_counters
from cadenza.store.schema import accounts, keys, usage
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store
from cadenza.store.tables.keys import OF_WEB, WEB_NAME

FIELDS = Counters.__struct_fields__
# A search is charged as one prompt token at the price of a search. It is left out of the prompt tokens.
PROMPT_TOKENS = case((usage.c.class_id == literal_column(f"'{SEARCH}'"), 0), else_=usage.c.prompt_tokens)
COUNTERS = (
    func.count(),
    total(PROMPT_TOKENS),
    total(usage.c.cached_tokens),
    total(usage.c.completion_tokens),
    total(usage.c.cost_nano),
)
GROUPS: dict[GroupBy, ColumnElement[object]] = {
    "day": usage.c.started_at // DAY_MS,
    "model": usage.c.class_id,
    "key": case(
        (usage.c.key_id.in_(select(keys.c.id).where(*OF_WEB)), literal_column(f"'{WEB_NAME}'")), else_=usage.c.key_id
    ),
    "account": select(accounts.c.email).where(accounts.c.id == usage.c.account_id).scalar_subquery(),
}
BALANCE = Statement(select(accounts.c.balance_nano, accounts.c.created_at).where(accounts.c.id == bindparam("account")))
BALANCE_OF_ALL = Statement(select(total(accounts.c.balance_nano)))
IN_SPAN = (usage.c.started_at >= bindparam("start"), usage.c.started_at < bindparam("end"))
OF_SPAN = (usage.c.account_id == bindparam("account"), *IN_SPAN)
_BY = {name: select(column, *COUNTERS).group_by(text("1")).order_by(text("1")) for name, column in GROUPS.items()}
REPORTS = {group_by: Statement(query.where(*OF_SPAN)) for group_by, query in _BY.items()}
REPORTS_OF_ALL = {group_by: Statement(query.where(*IN_SPAN)) for group_by, query in _BY.items()}
_BY_DAY_AND_CLASS = select(GROUPS["day"], usage.c.class_id, *COUNTERS).where(*OF_SPAN).group_by(text("1"), text("2"))
BY_DAY_AND_CLASS = Statement(_BY_DAY_AND_CLASS)
BY_DAY_AND_CLASS_OF_KEY = Statement(_BY_DAY_AND_CLASS.where(usage.c.key_id == bindparam("key")))
SPENT = Statement(select(total(usage.c.cost_nano)).where(*OF_SPAN))
KEY_SUMS = (
    select(usage.c.key_id, *(column.label(name) for name, column in zip(FIELDS, COUNTERS, strict=True)))
    .where(*OF_SPAN)
    .group_by(usage.c.key_id)
    .subquery()
)
BY_KEY = Statement(
    select(keys.c.id, keys.c.name, keys.c.prefix, *(KEY_SUMS.c[name] for name in FIELDS), func.count().over())
    .join_from(KEY_SUMS, keys, keys.c.id == KEY_SUMS.c.key_id)
    .order_by(KEY_SUMS.c.cost_nano.desc(), KEY_SUMS.c.requests.desc(), keys.c.id)
    .limit(bindparam("count"))
)


async def balance(store: Store, account_id: str) -> tuple[int, int]:
    """The balance of an account, and when the account was created."""
    row = await store.row(BALANCE, {"account": account_id})
    assert row
    return int(row[0]), int(row[1])


async def report(store: Store, account_id: str | None, span: Span, group_by: GroupBy) -> Report:
    """Groups are ordered by day or by name; the totals are their sum. Without an account it is of all accounts."""
    if account_id is None:
        [(balance_nano,)] = await store.rows(BALANCE_OF_ALL, {})
        rows = await store.rows(REPORTS_OF_ALL[group_by], _values("", span), is_long=True)
    else:
        balance_nano, _ = await balance(store, account_id)
        rows = await store.rows(REPORTS[group_by], _values(account_id, span))
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
    rows = await store.rows(statement, {**_values(account_id, span), **({"key": key_id} if key_id else {})})
    return [(int(day), class_id, Counters(*map(int, counters))) for day, class_id, *counters in rows]


async def by_key(store: Store, account_id: str, span: Span, count: int) -> tuple[list[KeyUsage], int]:
    """The keys that cost most, and how many keys were used."""
    rows = await store.rows(BY_KEY, {**_values(account_id, span), "count": count})
    found = [
        KeyUsage(key_id, name, prefix, Counters(*map(int, counters))) for key_id, name, prefix, *counters, _ in rows
    ]
    return found, int(rows[0][-1]) if rows else 0


async def spent(store: Store, account_id: str, span: Span) -> int:
    [(cost_nano,)] = await store.rows(SPENT, _values(account_id, span))
    return int(cost_nano)


def _values(account_id: str, span: Span) -> dict[str, str | int]:
    return {"account": account_id, "start": span.start_ms, "end": span.end_ms}
