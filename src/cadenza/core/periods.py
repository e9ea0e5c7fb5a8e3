"""The period that a spend cap counts: a calendar month in UTC, or all time."""

from datetime import UTC, datetime, timedelta

from cadenza.core.records import Period

ALL_TIME = 0  # the "month" of a cap for all time
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def month_of(period: Period, at_ms: int) -> int:
    """The period that a time belongs to: its month in UTC, like 202611, or ALL_TIME."""
    if period == "total":
        return ALL_TIME
    time = EPOCH + timedelta(milliseconds=at_ms)
    return time.year * 100 + time.month


def span_of(month: int) -> tuple[int, int]:
    """The first millisecond of a month, and of the month after it; all of time for ALL_TIME."""
    if month == ALL_TIME:
        return 0, 2**62
    year, number = divmod(month, 100)
    begins = (datetime(year, number, 1, tzinfo=UTC), datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC))
    first_ms, next_ms = ((begin - EPOCH) // timedelta(milliseconds=1) for begin in begins)
    return first_ms, next_ms
