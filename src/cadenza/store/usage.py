"""Reading the metering rows: an account's usage over a span of time, in all and in groups."""

from typing import Any

from sqlalchemy import ColumnElement, Row, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.core.usage_report import Counters, Group, GroupBy, Report, Span, day_name
from cadenza.store.schema import accounts, usage

DAY_MS = 24 * 60 * 60 * 1000
COLUMNS = {"day": usage.c.started_at // DAY_MS, "model": usage.c.class_id, "key": usage.c.key_id}
COUNTERS = (
    func.count().label("requests"),
    func.coalesce(func.sum(usage.c.prompt_tokens), 0).label("prompt_tokens"),
    func.coalesce(func.sum(usage.c.cached_tokens), 0).label("cached_tokens"),
    func.coalesce(func.sum(usage.c.completion_tokens), 0).label("completion_tokens"),
    func.coalesce(func.sum(usage.c.cost_nano), 0).label("cost_nano"),
)


async def report(conn: AsyncConnection, account_id: str, span: Span, group_by: GroupBy) -> Report:
    """Groups are ordered by day or by name; the totals are their sum."""
    balance = await conn.execute(select(accounts.c.balance_nano).where(accounts.c.id == account_id))
    of: ColumnElement[Any] = COLUMNS[group_by].label("of")
    within = (
        usage.c.account_id == account_id,
        usage.c.started_at >= span.start_ms,
        usage.c.started_at < span.end_ms,
    )
    rows = await conn.execute(select(of, *COUNTERS).where(*within).group_by(text("1")).order_by(text("1")))
    groups = [Group(day_name(row.of) if group_by == "day" else row.of, _counters(row)) for row in rows]
    return Report(span, balance.scalar_one(), _sum(groups), group_by, groups)


def _counters(row: Row[*tuple[Any, ...]]) -> Counters:
    return Counters(*(int(getattr(row, name)) for name in Counters.__struct_fields__))


def _sum(groups: list[Group]) -> Counters:
    fields = Counters.__struct_fields__
    return Counters(*(sum(getattr(group.counters, name) for group in groups) for name in fields))
