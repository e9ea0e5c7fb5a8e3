"""Usage: the page with its charts, and the report as JSON and CSV.

Reports are rate-limited by account.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from cadenza.control.money.statement import key_overview, pace, usage_by_key, usage_overview
from cadenza.core.money import format_dollars
from cadenza.core.rates import Rate
from cadenza.core.records import CLASSES, SEARCH
from cadenza.core.spans import DAY_MS, Span, first_day, last_day, parse_span
from cadenza.core.usage_report import NOTHING, Counters, GroupBy, Overview, parse_group
from cadenza.parts.site.charts import Bars, Series, Show, axis_dollars, compact, share_bar, stacked_bars, swatch
from cadenza.parts.site.dates import RANGE_NAMES, named_span, read_span
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.files import csv_file
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.usage import report

REPORT_RATE = Rate(2.0, 30)  # for each account
DAYS_MAX = 366
CSV_COUNTERS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
SERIES = {name: number for number, name in enumerate((*CLASSES, SEARCH), 1)}


class Measure(msgspec.Struct, frozen=True):
    """What the bars of the chart count."""

    name: str
    value_of: Callable[[Counters], int]
    show: Show


MEASURES = {
    "cost": Measure("Cost", lambda found: found.cost_nano, axis_dollars),
    "tokens": Measure("Tokens", lambda found: found.tokens, compact),
    "requests": Measure("Requests", lambda found: found.requests, compact),
}


async def usage_page(visit: Visit) -> Response:
    query = visit.query_fields
    chosen = read_span(visit) or named_span("30", visit.now_ms)
    if chosen.span.end_ms - chosen.span.start_ms > DAYS_MAX * DAY_MS:
        raise BadForm(f"This page shows at most {DAYS_MAX} days: choose a later start or an earlier end.")
    shown = query.get("show", "cost") if query.get("show") in MEASURES else "cost"
    await _check_rate(visit)
    found = await usage_overview(visit.store, visit.owner, chosen.span)
    return visit.page(
        "usage.html",
        overview=found,
        chosen=chosen,
        ranges=RANGE_NAMES,
        shown=shown,
        measures=MEASURES,
        chart=day_chart(found, shown) if found.totals.requests else "",
        classes=[name for name in SERIES if name in found.by_class],
        pace=await pace(visit.store, visit.account, visit.now_ms),
        last_ms=found.span.end_ms - 1,
        series=SERIES,
        swatch=swatch,
        share_bar=share_bar,
    )


async def key_usage(visit: Visit, key_id: str) -> tuple[Overview, str]:
    """The usage of a key of the account over the last 30 days, and its chart, which is empty without requests."""
    await _check_rate(visit)
    span = named_span("30", visit.now_ms).span
    found = await key_overview(visit.store, visit.owner, key_id, span)
    return found, day_chart(found, "cost") if found.totals.requests else ""


async def get_usage(visit: Visit) -> dict[str, Any]:
    span, group_by = _asked(visit)
    await _check_rate(visit)
    return (await report(visit.store, visit.account.id, span, group_by)).shown()


async def get_usage_csv(visit: Visit) -> Response:
    span, group_by = _asked(visit)
    await _check_rate(visit)
    store, account_id = visit.store, visit.account.id
    if group_by == "key":
        found = await usage_by_key(store, visit.owner, span)
        head: tuple[str, ...] = ("key", "name", "prefix")
        rows = [(one.id, one.name, one.prefix, *_cells(one.counters)) for one in found]
    else:
        groups = (await report(store, account_id, span, group_by)).groups
        head, rows = (group_by,), [(name, *_cells(counters)) for name, counters in groups]
    name = f"cadenza-usage-{first_day(span)}-to-{last_day(span)}-by-{group_by}"
    return csv_file(name, [(*head, *CSV_COUNTERS), *rows])


def day_chart(found: Overview, shown: str) -> str:
    """Bars by day, stacked by class."""
    measure = MEASURES[shown]
    days = [date.fromisoformat(one.day) for one in found.days]
    layers = [
        Series(name, SERIES[name], [measure.value_of(one.by_class.get(name, NOTHING)) for one in found.days])
        for name in SERIES
        if name in found.by_class
    ]
    total = measure.value_of(found.totals)
    return stacked_bars(
        Bars(
            title=f"{measure.name} by day and class, {measure.show(total)} in all. The table below has every number.",
            labels=[f"{one.day} {one:%b}" for one in days],
            names=[f"{one:%a} {one.day} {one:%b %Y}" for one in days],
            series=layers,
            show=measure.show,
        )
    )


def _cells(found: Counters) -> tuple[str | int, ...]:
    cost = format_dollars(found.cost_nano)
    return found.requests, found.prompt_tokens, found.cached_tokens, found.completion_tokens, cost


def _asked(visit: Visit) -> tuple[Span, GroupBy]:
    query = visit.query_fields
    try:
        now = datetime.fromtimestamp(visit.now_ms / 1000, UTC)
        return parse_span(query.get("start"), query.get("end"), now), parse_group(query.get("group_by"))
    except ValueError as error:
        raise BadForm(str(error)) from None


async def _check_rate(visit: Visit) -> None:
    await visit.limit("usage", REPORT_RATE, "Too many usage reports at once. Try again in a moment.")


ROUTES: Routes = (
    get("/usage", usage_page),
    endpoint(
        "GET",
        "/usage",
        "The usage of a span of time, by day, model or key",
        get_usage,
        "usage:read",
        returns="UsageReport",
    ),
    endpoint(
        "GET", "/usage.csv", "The same as a file for spreadsheets", get_usage_csv, "usage:read", media_type="text/csv"
    ),
)
