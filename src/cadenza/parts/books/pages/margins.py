"""What requests earned and cost, and the bill of a provider beside our own counts. A bill is not stored."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from cadenza.core.money import NANO_PER_CENT
from cadenza.core.records import DEFAULT_CLASS
from cadenza.parts.books.bills import BillReport, Tolerance
from cadenza.parts.books.margin import MARGIN_GROUPS, MarginGroup
from cadenza.parts.books.margins import reconcile, report_margin
from cadenza.parts.site.dates import RANGE_NAMES, named_span, read_span
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.visit import Visit

MARGINS, BILL = "/operator/margins", "/operator/bill"
ROWS_MAX = 100
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Cents = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class MarginQuery(msgspec.Struct, frozen=True):
    """What the rows are."""

    by: MarginGroup = "class"


async def margins_page(visit: Visit) -> Response:
    group, chosen = visit.query(MarginQuery).by, read_span(visit) or named_span("30", visit.now_ms)
    report = await report_margin(visit.store, chosen.span, group)
    rows = report.rows
    if len(rows) > ROWS_MAX:
        rows = sorted(rows, key=lambda row: -row.sums.earned_nano)[:ROWS_MAX]
    return visit.page(
        "books/margins.html",
        report=report,
        rows=[*rows, report.total_row],
        chosen=chosen,
        ranges=RANGE_NAMES,
        groups=MARGIN_GROUPS,
    )


async def bill_page(visit: Visit, found: BillReport | None = None) -> Response:
    """Of a long bill only lines that do not agree, and not more than a page takes."""
    shown = found
    if found and len(found.lines) > ROWS_MAX:
        differing = [line for line in found.lines if line.result != "agrees"]
        shown = BillReport(differing[:ROWS_MAX], found.total)
    return visit.page("books/bill.html", found=found, shown=shown, providers=_providers(visit))


async def compare(visit: Visit, provider: str, bill: str, percent: Percent = 0.5, cents: Cents = 1) -> Response:
    tolerance = Tolerance(percent / 100, cents * NANO_PER_CENT)
    visit.typed = {"provider": provider, "bill": bill, "percent": percent, "cents": cents}
    try:
        found = await reconcile(visit.store, provider, _providers(visit), bill.splitlines(keepends=True), tolerance)
    except ValueError as error:
        raise BadForm(f"{str(error)[:1].upper()}{str(error)[1:]}") from None
    return await bill_page(visit, found)


def _providers(visit: Visit) -> list[str]:
    return sorted(visit.service.class_rules(DEFAULT_CLASS).providers)


ROUTES: Routes = (
    get(MARGINS, margins_page),
    get(BILL, bill_page),
    form(BILL, compare, BILL, on_error=bill_page),
)
