"""The span of time that a page or an endpoint is asked for: `range`, `month`, or `from` and `to`. Times are in UTC."""

from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec

from cadenza.core.spans import ALWAYS, RANGES, Range, Span, first_day, last_day, parse_dates, range_span
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.visit import Visit

RANGE_NAMES: dict[Range, str] = {
    "7": "7 days",
    "30": "30 days",
    "90": "90 days",
    "month": "This month",
    "last-month": "Last month",
}
TIME_CHARS_MAX = 40


class ChosenSpan(msgspec.Struct, frozen=True):
    """A span, and the name of its range, if it is one of those that the pages offer."""

    span: Span
    name: Range | None = None

    @property
    def query(self) -> str:
        """The query of a link to the same span."""
        if self.name:
            return urlencode({"range": self.name})
        return urlencode({"from": self.first_day, "to": self.last_day})

    @property
    def first_day(self) -> str:
        return first_day(self.span)

    @property
    def last_day(self) -> str:
        return last_day(self.span)


def read_span(visit: Visit) -> ChosenSpan | None:
    """None if no span is asked for. Without an end it ends with today. BadForm says what is wrong with one."""
    query = {name: text[:TIME_CHARS_MAX] for name, text in visit.query_fields.items()}
    for name in RANGES:
        if query.get("range") == name:
            return named_span(name, visit.now_ms)
    try:
        span = parse_dates(query.get("from"), query.get("to"), query.get("month"))
    except ValueError as error:
        raise BadForm(str(error)) from None
    if span is None:
        return None
    today_ends = named_span("7", visit.now_ms).span.end_ms
    is_open = span.end_ms == ALWAYS.end_ms and span.start_ms < today_ends
    return ChosenSpan(Span(span.start_ms, today_ends) if is_open else span)


def named_span(name: Range, now_ms: int) -> ChosenSpan:
    return ChosenSpan(range_span(name, datetime.fromtimestamp(now_ms / 1000, UTC)), name)
