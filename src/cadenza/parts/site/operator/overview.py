"""The operator's first page: whether all is well, the last hour or day as plots, the live load, and the money.

Requests, tokens, money and times to the first token are read from the store: those of all processes. Errors are counted
by the processes of this machine, since their start. Each query reads a bounded range of an index.
"""

import time
from itertools import accumulate

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from cadenza.core.formats import rfc3339
from cadenza.core.public import to_record
from cadenza.parts.site.charts import Bars, Series, axis_dollars, compact, stacked_bars, swatch
from cadenza.parts.site.operator.load import get_load
from cadenza.parts.site.operator.reading import get_overview
from cadenza.parts.site.operator.views import OperatorOverview
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.tables.operators import FIRST_TOKEN_MS, UseStep
from cadenza.parts.site.visit import Visit

MINUTE_MS = 60_000
MS_PER_S = 1000
ERRORS = {  # by the status of the reply
    "upstream": ("502", "504"),
    "service": ("500", "503"),
    "refused": ("429",),
}
OF_CLIENTS = "client"  # any other status from 400 on


class PlotSpan(msgspec.Struct, frozen=True):
    """A span of time that is plotted, in steps of whole minutes."""

    name: str
    label: str
    step_ms: int
    count: int

    def start_ms(self, now_ms: int) -> int:
        """The last step is the one that has not ended."""
        return (now_ms // self.step_ms - self.count + 1) * self.step_ms


SPANS = {
    "hour": PlotSpan("hour", "Last hour", 2 * MINUTE_MS, 30),
    "day": PlotSpan("day", "Last day", 60 * MINUTE_MS, 24),
}


class Step(msgspec.Struct, frozen=True):
    """One row of the table under the plots. The percentiles are upper bounds in milliseconds; None without replies."""

    name: str
    use: UseStep
    errors: dict[str, int]
    p50_ms: int | None
    p95_ms: int | None


async def overview_page(visit: Visit) -> Response:
    span = SPANS.get(visit.query_fields.get("span", ""), SPANS["hour"])
    now_ms = visit.now_ms
    problems = await visit.service.health.problems()
    steps = await _steps(visit, span)
    return await visit.page_with_panels(
        "/operator",
        "operator/overview.html",
        problems=problems,
        found=await get_overview(visit.store, now_ms),
        load=await get_load(visit),
        span=span,
        spans=SPANS,
        steps=steps,
        charts=_charts(steps),
        counted_since_ms=max(visit.service.minutes.started_s * MS_PER_S, span.start_ms(now_ms)),
        swatch=swatch,
    )


async def get_totals(visit: Visit) -> OperatorOverview:
    found = await get_overview(visit.store, visit.now_ms)
    return to_record(
        OperatorOverview,
        found.totals,
        problems=await visit.service.health.problems(),
        today_start=rfc3339(found.today_start_ms),
        today=found.today,
    )


async def _steps(visit: Visit, span: PlotSpan) -> list[Step]:
    start_ms = span.start_ms(visit.now_ms)
    uses = await visit.context.use_history.read(start_ms, span.step_ms, span.count)
    replies = visit.service.minutes.series(
        start_ms / MS_PER_S, span.step_ms // MS_PER_S, span.count, "cadenza_requests_total"
    )
    return [
        Step(
            time.strftime("%H:%M", time.gmtime(use.start_ms / MS_PER_S)),
            use,
            _errors(by_status),
            percentile_ms(use.first_tokens, 0.5),
            percentile_ms(use.first_tokens, 0.95),
        )
        for use, by_status in zip(uses, replies, strict=True)
    ]


def _errors(by_status: dict[str, int]) -> dict[str, int]:
    """Replies with an error, by who is at fault."""
    kinds = {status: kind for kind, statuses in ERRORS.items() for status in statuses}
    errors = dict.fromkeys((*ERRORS, OF_CLIENTS), 0)
    for status, count in by_status.items():
        if status >= "400":
            errors[kinds.get(status, OF_CLIENTS)] += count
    return errors


def percentile_ms(counts: tuple[int, ...], part: float) -> int | None:
    """The bound of FIRST_TOKEN_MS within which this part of the replies began; the highest one for any above it."""
    if not any(counts):
        return None
    wanted = part * sum(counts)
    places = [place for place, reached in enumerate(accumulate(counts)) if reached >= wanted]
    return FIRST_TOKEN_MS[min(places[0], len(FIRST_TOKEN_MS) - 1)]


def _charts(steps: list[Step]) -> list[tuple[str, Markup, list[tuple[int, str]]]]:
    """Title, picture and legend of each plot."""
    p50 = [one.p50_ms or 0 for one in steps]
    above = [(one.p95_ms or 0) - low for one, low in zip(steps, p50, strict=True)]
    plots = [
        (
            "Requests",
            compact,
            {
                "served": [one.use.requests - one.use.failed for one in steps],
                "failed": [one.use.failed for one in steps],
            },
        ),
        ("Errors", compact, {kind: [one.errors[kind] for one in steps] for kind in (*ERRORS, OF_CLIENTS)}),
        (
            "Tokens",
            compact,
            {"input": [one.use.prompt_tokens for one in steps], "output": [one.use.completion_tokens for one in steps]},
        ),
        ("Charged", axis_dollars, {"charged": [one.use.cost_nano for one in steps]}),
        ("Time to the first token", _show_ms, {"half of the replies": p50, "95 % of the replies": above}),
    ]
    names = [one.name for one in steps]
    drawn = list[tuple[str, Markup, list[tuple[int, str]]]]()
    for title, show, layers in plots:
        series = [Series(name, number, values) for number, (name, values) in enumerate(layers.items(), 1)]
        text = f"{title}. The table below has every number."
        picture = stacked_bars(Bars(text, names, names, series, show), has_patterns=not drawn)
        drawn.append((title, picture, [(one.number, one.name) for one in series]))
    return drawn


def _show_ms(time_ms: int) -> str:
    return f"{time_ms} ms" if time_ms < MS_PER_S else f"{time_ms / MS_PER_S:g} s"


ROUTES: Routes = (
    get("/operator", overview_page),
    endpoint(
        "GET",
        "/operator/overview",
        "Show whether all is well, all accounts together, and the usage of today",
        get_totals,
        "operator.service:read",
    ),
)
