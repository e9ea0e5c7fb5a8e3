"""Reads the metering rows: an account's usage over a span of time, in total and by group."""

from typing import get_args

from sqlalchemy import ColumnElement, bindparam, case, func, literal_column, select, text

from cadenza.core.usage_report import Counters, Group, GroupBy, Report, Span, day_name
from cadenza.store.keys import OF_WEB, WEB_NAME
from cadenza.store.schema import accounts, keys, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store

DAY_MS = 24 * 60 * 60 * 1000
COUNTERS = (
    func.count(),
    func.coalesce(func.sum(usage.c.prompt_tokens), 0),
    func.coalesce(func.sum(usage.c.cached_tokens), 0),
    func.coalesce(func.sum(usage.c.completion_tokens), 0),
    func.coalesce(func.sum(usage.c.cost_nano), 0),
)
GROUPS: dict[GroupBy, ColumnElement[object]] = {
    "day": usage.c.started_at // DAY_MS,
    "model": usage.c.class_id,
    "key": case(
        (usage.c.key_id.in_(select(keys.c.id).where(*OF_WEB)), literal_column(f"'{WEB_NAME}'")), else_=usage.c.key_id
    ),
}
BALANCE = Statement(select(accounts.c.balance_nano).where(accounts.c.id == bindparam("account")))
REPORTS: dict[GroupBy, Statement] = {
    group_by: Statement(
        select(GROUPS[group_by], *COUNTERS)
        .where(
            usage.c.account_id == bindparam("account"),
            usage.c.started_at >= bindparam("start"),
            usage.c.started_at < bindparam("end"),
        )
        .group_by(text("1"))
        .order_by(text("1"))
    )
    for group_by in get_args(GroupBy)
}


async def report(store: Store, account_id: str, span: Span, group_by: GroupBy) -> Report:
    """Groups are ordered by day or by name; the totals are their sum."""
    balance = await store.row(BALANCE, {"account": account_id})
    assert balance
    values = {"account": account_id, "start": span.start_ms, "end": span.end_ms}
    groups = [
        Group(day_name(name) if group_by == "day" else name, Counters(*map(int, counters)))
        for name, *counters in await store.rows(REPORTS[group_by], values)
    ]
    return Report(span, int(balance[0]), _sum(groups), group_by, groups)


def _sum(groups: list[Group]) -> Counters:
    fields = Counters.__struct_fields__
    return Counters(*(sum(getattr(group.counters, name) for group in groups) for name in fields))
