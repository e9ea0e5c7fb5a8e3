"""Spans of time as people and programs write them. All times are in UTC, and days and months begin at midnight.

A date as the end of a span includes that day; a time of day is the moment at which the span ends.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.records import Period

Range = Literal["7", "30", "90", "month", "last-month"]
RANGES: tuple[Range, ...] = ("7", "30", "90", "month", "last-month")
DEFAULT_SPAN = timedelta(days=30)
DAY_MS = 24 * 60 * 60 * 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL_TIME = 0  # the "month" of a spend cap that counts for all time
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(ms|s|m|h)?")
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Span(msgspec.Struct, frozen=True):
    """From `start` up to but not including `end`."""

    start_ms: int
    end_ms: int


ALWAYS = Span(0, (LATEST - EPOCH) // timedelta(milliseconds=1))


def parse_dates(start: str | None, end: str | None, month: str | None) -> Span | None:
    """The span of `--from`, `--to` and `--month`, each of which may be left out; None if all are.

    Without a start or an end, it has none. A ValueError says what is wrong.
    """
    if month:
        if start or end:
            raise ValueError("month: a month is a span of its own; leave out from and to.")
        return month_span(month)
    if not start and not end:
        return None
    start_at = parse_time("from", start) if start else EPOCH
    end_at = parse_time("to", end) if end else LATEST
    if end and DATE.fullmatch(end):
        end_at += timedelta(days=1)
    if start_at >= end_at:
        raise ValueError("from: must be before to.")
    return Span(_ms(start_at), _ms(end_at))


def parse_span(start: str | None, end: str | None, now: datetime) -> Span:
    """RFC 3339 or Unix seconds, in UTC; by default the last 30 days. A ValueError says what is wrong."""
    end_at = parse_time("end", end) if end else now + timedelta(seconds=1)
    start_at = parse_time("start", start) if start else end_at - DEFAULT_SPAN
    if start_at >= end_at:
        raise ValueError("start: must be before end.")
    return Span(_ms(start_at), _ms(end_at))


def range_span(name: Range, now: datetime) -> Span:
    """Whole days up to and including today: the last 7, 30 or 90 of them, or those of this month; or the last month."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today.replace(day=1)
    if name == "last-month":
        return Span(_ms((first - timedelta(days=1)).replace(day=1)), _ms(first))
    start = first if name == "month" else today - timedelta(days=int(name) - 1)
    return Span(_ms(start), _ms(today + timedelta(days=1)))


def parse_duration_ms(text: str) -> int:
    """A length of time like 500ms, 90s, 10m or 2h; without a unit it is seconds."""
    found = DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ControlError(f"{text[:40]!r} is not a length of time. Write it like 500ms, 90s, 10m or 2h.")
    return round(float(found[1]) * UNITS_MS[found[2] or "s"])


def month_span(text: str) -> Span:
    """The month that is written like 2026-10."""
    found = MONTH.fullmatch(text)
    try:
        first = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC) if found else None
    except ValueError:
        first = None
    if first is None or not EPOCH <= first < LATEST:
        raise ValueError("month: must be a month, like 2026-10.")
    return Span(_ms(first), _ms((first + timedelta(days=31)).replace(day=1)))


def month_of(period: Period, at_ms: int) -> int:
    """The period of a spend cap that a time belongs to: its month, like 202611, or ALL_TIME."""
    if period == "total":
        return ALL_TIME
    time = EPOCH + timedelta(milliseconds=at_ms)
    return time.year * 100 + time.month


def span_of(month: int) -> tuple[int, int]:
    """The first millisecond of a month, and of the month after it; all of time for ALL_TIME."""
    if month == ALL_TIME:
        return 0, 2**62
    span = month_span(f"{month // 100:04}-{month % 100:02}")
    return span.start_ms, span.end_ms


def parse_time(name: str, text: str) -> datetime:
    """A date, a time in RFC 3339, or Unix seconds."""
    try:
        if text.replace(".", "", 1).isdecimal():
            time = EPOCH + timedelta(seconds=float(text))
        else:
            time = datetime.fromisoformat(text.upper())
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        if DATE.fullmatch(text):
            raise ValueError(f"{name}: there is no day {text}.") from None
        raise ValueError(f"{name}: must be a time in RFC 3339, like 2026-01-31T00:00:00Z, or Unix seconds.") from None
    if not EPOCH <= time < LATEST:
        raise ValueError(f"{name}: must be a time after 1970.")
    return time


def day_of(at_ms: int) -> str:
    """The day of a time, like 2026-10-31."""
    return (EPOCH + timedelta(milliseconds=at_ms)).date().isoformat()


def last_day(span: Span) -> str:
    return day_of(span.end_ms - 1)


def first_day(span: Span) -> str:
    return day_of(span.start_ms)


def _ms(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)
