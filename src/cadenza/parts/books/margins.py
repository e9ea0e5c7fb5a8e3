"""What requests earned and cost, and how our counts compare with the bill of a provider. Only reads."""

from collections.abc import Collection, Iterable

from cadenza.core.config_keys import suggest
from cadenza.core.spans import Span, parse_dates
from cadenza.ledger import months
from cadenza.parts.books import margin_rows as margins
from cadenza.parts.books.bill_file import match_models, read_bill
from cadenza.parts.books.bills import BillReport, Tolerance, compare
from cadenza.parts.books.margin import REVENUE_GROUPS, MarginGroup, MarginReport, MarginRow, MarginSums, Revenue
from cadenza.store.store import Store


async def report_margin(store: Store, span: Span, group: MarginGroup) -> MarginReport:
    """By account and by month also what had refunds or charges, but no metered request of the span."""
    sums = dict(await margins.read_margins(store, span, group))
    before = months.month_before(await months.list_months(store), span.start_ms)
    revenue = await margins.read_revenue(store, span, group, before.first_open_id if before else 0)
    has_revenue = group in REVENUE_GROUPS
    names = dict.fromkeys([*sums, *(revenue if has_revenue else ())])
    rows = [
        MarginRow(name, sums.get(name, MarginSums()), revenue.get(name, Revenue()) if has_revenue else None)
        for name in names
    ]
    return MarginReport(group, rows, sum(revenue.values(), Revenue()))


async def reconcile(
    store: Store, provider: str, providers: Collection[str], bill: Iterable[str], tolerance: Tolerance
) -> BillReport:
    """Compare the lines of a bill, as CSV, with our counts. ValueError for an unknown provider, or for no bill."""
    if provider not in providers:
        raise ValueError(f"no provider is named {provider[:40]!r}; {suggest(provider, providers)}")
    billed = read_bill(bill)
    days = sorted(place.day for place in billed)  # from the first to the last, also days that the bill lacks
    span = parse_dates(days[0], days[-1], None)
    assert span
    counted = await margins.read_counts(store, provider, span)
    tried = await margins.read_attempts(store, provider, span)
    models = {place.model for place in counted} | {key.model for key in tried}
    return BillReport.of(compare(counted, tried, match_models(billed, models), tolerance), tolerance)
