"""Sums up the metering rows for those who run the service: what they earned and cost, and what each model counted."""

from collections.abc import Callable

from sqlalchemy import ColumnElement, bindparam, case, select

from cadenza.core.bills import DayModel, ModelCounts
from cadenza.core.margin import MarginGroup, MarginSums, add_margins
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import day_name
from cadenza.store.schema import accounts
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.metered import Metered, add_up

GROUPS: dict[MarginGroup, Callable[[Metered], ColumnElement[object]]] = {
    "class": lambda rows: rows.c.class_id,
    "provider": lambda rows: rows.c.provider,
    "account": lambda rows: select(accounts.c.email).where(accounts.c.id == rows.c.account_id).scalar_subquery(),
    "month": lambda rows: rows.c.started_at // DAY_MS,  # days are added up to months below
}


def _has_tokens(rows: Metered) -> ColumnElement[bool]:
    """Others failed before an answer, and cost nothing."""
    found: ColumnElement[bool] = rows.c.prompt_tokens + rows.c.completion_tokens > 0
    return found


def _sums(rows: Metered) -> list[ColumnElement[int]]:
    is_unknown = rows.c.provider_cost_nano.is_(None)
    return [
        rows.requests,
        rows.c.cost_nano,
        rows.c.provider_cost_nano,
        case((is_unknown, rows.requests), else_=0),
        case((is_unknown, rows.c.cost_nano), else_=0),
    ]


def _counts(rows: Metered) -> list[ColumnElement[int]]:
    return [
        rows.requests,
        rows.c.prompt_tokens,
        rows.c.cached_tokens,
        rows.c.completion_tokens,
        rows.c.provider_cost_nano,
        case((rows.c.provider_cost_nano.is_(None), rows.requests), else_=0),
        case((rows.c.estimated, rows.requests), else_=0),
        case((rows.c.status != 200, rows.requests), else_=0),
    ]


def _margins(group: Callable[[Metered], ColumnElement[object]]) -> Statement:
    return Statement(add_up(lambda rows: [group(rows)], _sums, lambda rows: (*rows.in_span, _has_tokens(rows))))


MARGINS = {name: _margins(group) for name, group in GROUPS.items()}
COUNTS = Statement(
    add_up(
        lambda rows: [rows.c.started_at // DAY_MS, rows.c.model],
        _counts,
        lambda rows: (*rows.in_span, _has_tokens(rows), rows.c.provider == bindparam("provider")),
    )
)


async def read_margins(store: Store, span: Span, group: MarginGroup) -> list[tuple[str, MarginSums]]:
    """What the requests of all accounts earned and cost, by group."""
    values = {"start": span.start_ms, "end": span.end_ms}
    by_name: dict[str, list[MarginSums]] = {}
    for found, *sums in await store.report(MARGINS[group], values):
        name = day_name(found)[:7] if group == "month" else str(found)
        by_name.setdefault(name, []).append(MarginSums(*map(int, sums)))
    return [(name, add_margins(many)) for name, many in by_name.items()]


async def read_counts(store: Store, provider: str, span: Span) -> dict[DayModel, ModelCounts]:
    """What the metering rows have of one provider, by day and model."""
    values = {"start": span.start_ms, "end": span.end_ms, "provider": provider}
    rows = await store.report(COUNTS, values)
    return {DayModel(day_name(day), model): ModelCounts(*map(int, counts)) for day, model, *counts in rows}
