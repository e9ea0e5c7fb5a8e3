"""Sums of requests for those who run the service: what they earned and cost, and what each model counted."""

from cadenza.core.bills import DayModel, ModelCounts
from cadenza.core.margin import MarginGroup, MarginSums, add_margins
from cadenza.core.spans import Span
from cadenza.core.usage_report import day_name
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.metered import add_up, span_values
from cadenza.store.tables.usage import email_of

# requests without tokens failed before an answer, and cost nothing
SUMS = ("counted_requests", "cost_nano", "provider_cost_nano", "uncosted_requests", "uncosted_nano")
COUNTS = (
    *("counted_requests", "prompt_tokens", "cached_tokens", "completion_tokens", "provider_cost_nano"),
    *("uncosted_requests", "estimated_requests", "broken_requests"),
)
MARGINS: dict[MarginGroup, Statement] = {
    "class": Statement(lambda: add_up(["class_id"], SUMS)),
    "provider": Statement(lambda: add_up(["provider"], SUMS)),
    "account": Statement(lambda: add_up(["account_id"], SUMS, shown=email_of)),
    "month": Statement(lambda: add_up(["day"], SUMS)),  # days are added up to months below
}
READ_COUNTS = Statement(lambda: add_up(["day", "model"], COUNTS, "provider"))


async def read_margins(store: Store, span: Span, group: MarginGroup) -> list[tuple[str, MarginSums]]:
    """What the requests of all accounts earned and cost, by group."""
    by_name: dict[str, list[MarginSums]] = {}
    for found, *sums in await store.report(MARGINS[group], span_values(span)):
        name = day_name(found)[:7] if group == "month" else str(found)
        by_name.setdefault(name, []).append(MarginSums(*map(int, sums)))
    return [(name, add_margins(many)) for name, many in by_name.items()]


async def read_counts(store: Store, provider: str, span: Span) -> dict[DayModel, ModelCounts]:
    """What was counted of one provider, by day and model."""
    rows = await store.report(READ_COUNTS, span_values(span, provider=provider))
    return {DayModel(day_name(day), model): ModelCounts(*map(int, counts)) for day, model, *counts in rows}
