"""Sums up the metering rows for those who run the service: what they earned and cost, and what each model counted."""

from sqlalchemy import ColumnElement, and_, bindparam, case, func, select, text

from cadenza.core.bills import DayModel, ModelCounts
from cadenza.core.margin import MarginGroup, MarginSums, add_margins
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import day_name
from cadenza.store.schema import accounts, usage
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store
from cadenza.store.tables.usage import IN_SPAN

DAY = usage.c.started_at // DAY_MS
HAS_TOKENS = usage.c.prompt_tokens + usage.c.completion_tokens > 0  # others failed before an answer, and cost nothing
IS_UNKNOWN = usage.c.provider_cost_nano.is_(None)
GROUPS: dict[MarginGroup, ColumnElement[object]] = {
    "class": usage.c.class_id,
    "provider": usage.c.provider,
    "account": select(accounts.c.email).where(accounts.c.id == usage.c.account_id).scalar_subquery(),
    "month": DAY,  # days are added up to months below
}
SUMS = (
    func.count(),
    total(usage.c.cost_nano),
    total(usage.c.provider_cost_nano),
    total(case((IS_UNKNOWN, 1), else_=0)),
    total(case((IS_UNKNOWN, usage.c.cost_nano), else_=0)),
)
MARGINS = {
    name: Statement(select(column, *SUMS).where(*IN_SPAN, HAS_TOKENS).group_by(text("1")).order_by(text("1")))
    for name, column in GROUPS.items()
}
_LEFT = and_(usage.c.status != 200, HAS_TOKENS)
COUNTS = Statement(
    select(
        DAY,
        usage.c.model,
        func.count(),
        total(usage.c.prompt_tokens),
        total(usage.c.cached_tokens),
        total(usage.c.completion_tokens),
        total(usage.c.provider_cost_nano),
        total(case((IS_UNKNOWN, 1), else_=0)),
        total(case((usage.c.estimated, 1), else_=0)),
        total(case((_LEFT, 1), else_=0)),
    )
    .where(*IN_SPAN, HAS_TOKENS, usage.c.provider == bindparam("provider"))
    .group_by(text("1"), text("2"))
)


async def read_margins(store: Store, span: Span, group: MarginGroup) -> list[tuple[str, MarginSums]]:
    """What the requests of all accounts earned and cost, by group."""
    values = {"start": span.start_ms, "end": span.end_ms}
    by_name: dict[str, list[MarginSums]] = {}
    for found, *sums in await store.rows(MARGINS[group], values, is_long=True):
        name = day_name(found)[:7] if group == "month" else str(found)
        by_name.setdefault(name, []).append(MarginSums(*map(int, sums)))
    return [(name, add_margins(many)) for name, many in by_name.items()]


async def read_counts(store: Store, provider: str, span: Span) -> dict[DayModel, ModelCounts]:
    """What the metering rows have of one provider, by day and model."""
    values = {"start": span.start_ms, "end": span.end_ms, "provider": provider}
    rows = await store.rows(COUNTS, values, is_long=True)
    return {DayModel(day_name(day), model): ModelCounts(*map(int, counts)) for day, model, *counts in rows}
