"""What requests earned and cost, and how our counts compare with the bill of a provider. Only reads."""

from collections.abc import Mapping

from cadenza.core.bills import BillCounts, ComparedDay, DayModel, Tolerance, compare, match_models
from cadenza.core.margin import MarginGroup, MarginSums, Revenue
from cadenza.core.spans import Span, parse_dates
from cadenza.ledger import months
from cadenza.store.store import Store
from cadenza.store.tables import attempts, margins


async def read_margin(store: Store, span: Span, group: MarginGroup) -> list[tuple[str, MarginSums]]:
    return await margins.read_margins(store, span, group)


async def read_revenue(store: Store, span: Span, group: MarginGroup) -> dict[str, Revenue]:
    before = months.month_before(await months.list_months(store), span.start_ms)
    return await margins.read_revenue(store, span, group, before.first_open_id if before else 0)


async def compare_bill(
    store: Store, provider: str, bill: Mapping[DayModel, BillCounts], tolerance: Tolerance
) -> list[ComparedDay]:
    """From the first day of the bill to its last, whether or not the bill has the days between."""
    days = sorted(place.day for place in bill)
    span = parse_dates(days[0], days[-1], None)
    assert span
    counted = await margins.read_counts(store, provider, span)
    tried = await attempts.read(store, provider, span)
    models = {place.model for place in counted} | {key.model for key in tried}
    return compare(counted, tried, match_models(bill, models), tolerance)
