"""Sums of requests for those who run the service: what they earned and cost, and what each model counted."""

from sqlalchemy import bindparam, select, text

from cadenza.core.attempts import AttemptKey, AttemptSums
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import day_name
from cadenza.parts.books.bill_file import DayModel
from cadenza.parts.books.bills import ModelCounts
from cadenza.parts.books.margin import MarginGroup, MarginSums, Revenue, add_margins
from cadenza.store.schema import upstream_attempts
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.attempts import COLUMNS
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
_IS_CHARGE = "e.kind = 'charge' OR e.origin = 'late-end'"
REVENUES: dict[str, Statement] = {
    group: Statement(
        text(f"""
        SELECT {named}, SUM(CASE WHEN {_IS_CHARGE} THEN e.granted_nano - e.amount_nano ELSE 0 END),
        SUM(CASE WHEN {_IS_CHARGE} THEN -e.granted_nano ELSE 0 END),
        SUM(CASE WHEN {_IS_CHARGE} THEN 0 ELSE e.amount_nano END),
        SUM(CASE WHEN {_IS_CHARGE} THEN 0 ELSE e.granted_nano END)
        FROM entries e JOIN accounts a ON a.id = e.account_id
        WHERE e.id >= :first AND e.created_at >= :start AND e.created_at < :end
        AND ({_IS_CHARGE} OR e.origin = 'refund')
        GROUP BY 1 ORDER BY 1""")  # noqa: S608 our own expressions
    )
    for group, named in {"account": "a.email", "month": f"e.created_at / {DAY_MS}"}.items()
}
OF_PROVIDER = Statement(
    select(*(upstream_attempts.c[name] for name in COLUMNS)).where(
        upstream_attempts.c.provider == bindparam("provider"),
        upstream_attempts.c.day >= bindparam("first"),
        upstream_attempts.c.day <= bindparam("last"),
    )
)
READ_COUNTS = Statement(lambda: add_up(["day", "model"], COUNTS, "provider"))


async def read_margins(store: Store, span: Span, group: MarginGroup) -> list[tuple[str, MarginSums]]:
    """What the requests of all accounts earned and cost, by group."""
    by_name: dict[str, list[MarginSums]] = {}
    for found, *sums in await store.report(MARGINS[group], span_values(span)):
        name = day_name(found)[:7] if group == "month" else str(found)
        by_name.setdefault(name, []).append(MarginSums(*map(int, sums)))
    return [(name, add_margins(many)) for name, many in by_name.items()]


async def read_revenue(store: Store, span: Span, group: MarginGroup, first: int = 0) -> dict[str, Revenue]:
    """By account or by month what charges took of which credit. Other groups have months too, for their total.

    No entry of the span has a lower id than `first`.
    """
    by = "account" if group == "account" else "month"
    found: dict[str, Revenue] = {}
    for place, *sums in await store.report(REVENUES[by], {"start": span.start_ms, "end": span.end_ms, "first": first}):
        name = str(place) if by == "account" else day_name(place)[:7]
        found[name] = found.get(name, Revenue()) + Revenue(*map(int, sums))
    return found


async def read_counts(store: Store, provider: str, span: Span) -> dict[DayModel, ModelCounts]:
    """What was counted of one provider, by day and model."""
    rows = await store.report(READ_COUNTS, span_values(span, provider=provider))
    return {DayModel(day_name(day), model): ModelCounts(*map(int, counts)) for day, model, *counts in rows}


async def read_attempts(store: Store, provider: str, span: Span) -> dict[AttemptKey, AttemptSums]:
    """The attempts at one provider on the days of a span."""
    values = {"provider": provider, "first": span.start_ms // DAY_MS, "last": (span.end_ms - 1) // DAY_MS}
    rows = await store.rows(OF_PROVIDER, values)
    return {AttemptKey(*row[:4]): AttemptSums(*map(int, row[4:])) for row in rows}
