"""Spans of time: dates, months and ranges, all in UTC."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.spans import ALWAYS, Span, first_day, last_day, month_span, parse_dates, range_span


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("start", "end", "month", "span"),
    [
        (None, None, None, None),
        ("", "", "", None),
        (None, None, "2026-10", Span(ms("2026-10-01"), ms("2026-11-01"))),
        (None, None, "2026-12", Span(ms("2026-12-01"), ms("2027-01-01"))),
        (None, None, "2028-02", Span(ms("2028-02-01"), ms("2028-03-01"))),
        ("2026-10-01", "2026-10-31", None, Span(ms("2026-10-01"), ms("2026-11-01"))),
        ("2026-10-01", "2026-10-01", None, Span(ms("2026-10-01"), ms("2026-10-02"))),
        ("2026-10-01", "2026-10-31T12:00:00Z", None, Span(ms("2026-10-01"), ms("2026-10-31T12:00:00"))),
        ("2026-10-01T01:00:00+02:00", None, None, Span(ms("2026-09-30T23:00:00"), ALWAYS.end_ms)),
        (None, "1970-01-01", None, Span(0, ms("1970-01-02"))),
    ],
)
def test_dates_are_read(start: str | None, end: str | None, month: str | None, span: Span | None) -> None:
    """A date at the end includes that day; a time of day ends the span there. What is left out has no bound."""
    assert parse_dates(start, end, month) == span


@pytest.mark.parametrize(
    ("start", "end", "month", "sentence"),
    [
        ("2026-10-02", "2026-10-01", None, "from: must be before to"),
        ("2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z", None, "from: must be before to"),
        ("soon", None, None, "from: must be a time"),
        ("2026-13-01", None, None, "from: there is no day 2026-13-01"),
        (None, "2026-02-30", None, "to: there is no day 2026-02-30"),
        (None, None, "2026-13", "month: must be a month, like 2026-10"),
        (None, None, "2026-1", "month: must be a month"),
        (None, None, "0000-01", "month: must be a month"),
        (None, None, "１９９９-０１", "month: must be a month"),
        ("2026-10-01", None, "2026-10", "leave out from and to"),
    ],
)
def test_bad_dates_are_refused(start: str | None, end: str | None, month: str | None, sentence: str) -> None:
    """With the name of the option and what it should be."""
    with pytest.raises(ValueError, match=sentence):
        parse_dates(start, end, month)


@given(st.integers(400, 2_000_000), st.integers(0, 86_399))
def test_last_month_ends_where_this_month_begins(days: int, seconds: int) -> None:
    """And it is the month that is written out."""
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, seconds=seconds)
    this, last = range_span("month", now), range_span("last-month", now)
    assert last.end_ms == this.start_ms
    assert this.start_ms <= round(now.timestamp() * 1000) < this.end_ms
    before = now.replace(day=1) - timedelta(days=1)
    assert last == month_span(f"{before.year:04}-{before.month:02}")
    assert last_day(last) == before.date().isoformat()
    assert first_day(last) == before.replace(day=1).date().isoformat()
