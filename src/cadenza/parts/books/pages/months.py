"""The report of a month over all accounts, as a page, as CSV and as JSON, and its close.

What is no month, or has not begun, is 404.
"""

import msgspec
from starlette.responses import Response

from cadenza.core.formats import dollars_or_none, rfc3339_or_none
from cadenza.parts.books.closing import close_month
from cadenza.parts.books.months import REPORT_FIELDS, MonthReport, list_months, report_month
from cadenza.parts.site.errors import Missing
from cadenza.parts.site.files import csv_file
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit

ONE = "/operator/months/{month}"
SHOWN = 12


class MonthLine(msgspec.Struct, frozen=True):
    """A line of the report, the part of one origin in it (`origin`), or the payments of a day. Amounts are dollars."""

    line: str
    origin: str | None
    day: str | None
    provider: str | None
    count: int
    amount: str
    paid: str
    granted: str


class MonthView(msgspec.Struct, frozen=True):
    """A month over all accounts. `hash` and `closed_at` are null until it is closed."""

    month: str
    state: str
    accounts: int
    accounts_with_entries: int
    requests: int
    opening: str | None
    closing: str | None
    closed_at: str | None
    hash: str | None
    lines: list[MonthLine]


async def newest_months(visit: Visit) -> dict[str, object]:
    """For the page of the ledger."""
    return {"months": await list_months(visit.store, visit.now_ms, SHOWN)}


async def month_page(visit: Visit) -> Response:
    found, check = await _find(visit), visit.context.ledger_check
    results = [] if found.closed else await check.results()
    return visit.page("books/month.html", report=found, check=check, result=results[0] if results else None)


async def close_by_form(visit: Visit, month: str) -> Response:
    found = await _find(visit)
    is_new = visit.context.ledger_check.begin(visit.operator, found.month, close_month) is not None
    return redirect(ONE.format(month=month), "close-started" if is_new else "check-runs")


async def get_month(visit: Visit) -> MonthView:
    found = await _find(visit)
    closed = found.closed
    return MonthView(
        found.month,
        found.state,
        found.accounts,
        found.sums.accounts,
        found.sums.requests,
        dollars_or_none(found.sums.opening.amount_nano),
        dollars_or_none(found.sums.closing.amount_nano),
        rfc3339_or_none(closed.closed_at) if closed else None,
        closed.hash.hex() if closed and closed.hash else None,
        msgspec.convert(found.rows(), list[MonthLine]),
    )


async def get_month_csv(visit: Visit) -> Response:
    found = await _find(visit)
    return csv_file(f"cadenza-month-{found.month}", [REPORT_FIELDS, *(row.values() for row in found.rows())])


async def _find(visit: Visit) -> MonthReport:
    try:
        return await report_month(visit.store, visit.path_param("month"), visit.now_ms)
    except ValueError:
        raise Missing from None


ROUTES: Routes = (
    get(ONE, month_page),
    get(f"{ONE}/report.csv", get_month_csv),
    form(f"{ONE}/close", close_by_form, ONE, on_error=month_page, needs_proof=True),
    endpoint("GET", ONE, "Show what accounts had, got and spent in a month", get_month, "operator.credit:read"),
)
