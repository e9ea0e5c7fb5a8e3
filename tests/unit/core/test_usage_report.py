"""The usage report: times in every accepted form, groups, and money in dollars."""

from datetime import UTC, datetime

import pytest

from cadenza.core.spans import Range, Span, parse_span, range_span
from cadenza.core.usage_report import (
    LASTS_MS_MAX,
    NOTHING,
    Counters,
    Overview,
    SpendingRate,
    fill_days,
    spending_days,
    spending_rate,
    sum_counters,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-01-31T12:00:00Z", NOON_MS),
        ("2026-01-31T12:00:00+00:00", NOON_MS),
        ("2026-01-31T12:00:00-00:00", NOON_MS),
        ("2026-01-31T13:30:00+01:30", NOON_MS),
        ("2026-01-31T07:00:00-05:00", NOON_MS),
        ("2026-02-01T02:00:00+14:00", NOON_MS),
        ("2026-01-31t12:00:00z", NOON_MS),
        ("2026-01-31 12:00:00Z", NOON_MS),
        ("2026-01-31T12:00:00.25Z", NOON_MS + 250),
        ("2026-01-31T12:00:00.123456Z", NOON_MS + 123),
        ("2026-01-31T12:00:00.123456789Z", NOON_MS + 123),
        ("2026-01-31T12:00:00", NOON_MS),
        ("2026-01-31", NOON_MS - 12 * HOUR_MS),
        ("1769860800", NOON_MS),
        ("1769860800.5", NOON_MS + 500),
        ("0", 0),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_accepted_forms_of_a_time(text: str, time_ms: int) -> None:
    """RFC 3339 with any offset and with or without a fraction, a day, and Unix seconds; without an offset it is UTC."""
    assert parse_span(text, "2100-01-01T00:00:00Z", NOW).start_ms == time_ms


@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-01-32T00:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31T12:00:00+25:00",
        "31.01.2026",
        "-5",
        "1e9",
        "nan",
        "inf",
        "1.2.3",
        ".",
        " ",
        "1769860800Z",
        "9" * 400,
        "9000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59Z",
    ],
)
def test_an_invalid_time_is_refused_with_the_name_of_its_field(name: str, text: str) -> None:
    """Texts that are not times, and times out of range, are refused; the message begins with the field."""
    start, end = (text, None) if name == "start" else (None, text)
    with pytest.raises(ValueError, match=f"^{name}: must be a time"):
        parse_span(start, end, NOW)


@pytest.mark.parametrize(
    ("name", "first", "days"),
    [("7", "2026-01-25", 7), ("30", "2026-01-02", 30), ("90", "2025-11-03", 90), ("month", "2026-01-01", 31)],
)
def test_a_range_is_whole_days_up_to_today(name: Range, first: str, days: int) -> None:
    """It begins and ends at midnight UTC, and today is its last day."""
    found = fill_days(range_span(name, NOW), [])
    assert (found[0].day, found[-1].day, len(found)) == (first, "2026-01-31", days)


def test_days_without_usage_are_there() -> None:
    """Every day of a span has its place; what was found is on its day, and the sums are those of all days."""
    today = NOON_MS // DAY_MS
    one, two = Counters(1, 10, 5, 2, 30), Counters(2, 20, 0, 4, 60)
    found = [(today, "mezzo", one), (today - 2, "forte", two), (today, "forte", two)]
    days = fill_days(Span((today - 2) * DAY_MS, (today + 1) * DAY_MS), found)
    assert [day.by_class for day in days] == [{"forte": two}, {}, {"mezzo": one, "forte": two}]
    overview = Overview(Span(0, 1), days, [], 0)
    assert overview.by_class == {"forte": Counters(4, 40, 0, 8, 120), "mezzo": one}
    assert overview.totals == sum_counters([one, two, two])
    assert overview.totals.tokens == 60
    assert sum_counters([]) == NOTHING


@pytest.mark.parametrize(
    ("age_ms", "days"), [(0, 1), (1, 1), (DAY_MS, 1), (DAY_MS + 1, 2), (7 * DAY_MS, 7), (700 * DAY_MS, 7), (-5, 1)]
)
def test_the_pace_is_measured_over_at_most_seven_days(age_ms: int, days: int) -> None:
    """A younger account is measured over the days since it exists, and over at least one."""
    assert spending_days(NOON_MS - age_ms, NOON_MS) == days


def test_credit_lasts_as_long_as_the_pace_says() -> None:
    """Two dollars at half a dollar a day last four days. Without spending, or for over ten years, no end is told."""
    dollar = 10**9
    assert spending_rate(7 * dollar // 2, 7, 2 * dollar, NOON_MS) == SpendingRate(dollar // 2, 7, NOON_MS + 4 * DAY_MS)
    assert spending_rate(0, 7, dollar, NOON_MS) == SpendingRate(0, 7, None)
    assert spending_rate(6, 7, dollar, NOON_MS) == SpendingRate(0, 7, None)
    assert spending_rate(dollar, 1, 0, NOON_MS).lasts_until_ms == NOON_MS
    assert spending_rate(dollar, 1, 3650 * dollar, NOON_MS).lasts_until_ms == NOON_MS + LASTS_MS_MAX
    assert spending_rate(dollar, 1, 3651 * dollar, NOON_MS).lasts_until_ms is None


@pytest.mark.parametrize(
    ("expiring", "days"),
    [
        ([(2, 5)], 10),  # spent before it expires
        ([(6, 2)], 6),  # four of it expire
        ([(6, 2), (2, 3)], 5),  # of the second, there is time for one
        ([(6, 2), (4, 2)], 2),  # nothing else is left
        ([(1, -1)], 9),  # expired, and not swept yet
    ],
)
def test_credit_that_expires_is_not_counted_after_it(expiring: list[tuple[int, int]], days: int) -> None:
    """Of ten dollars at a dollar a day: what expires is spent first, and what is left of it then is lost."""
    dollar = 10**9
    lots = [(amount * dollar, NOON_MS + after * DAY_MS) for amount, after in expiring]
    assert spending_rate(dollar, 1, 10 * dollar, NOON_MS, lots).lasts_until_ms == NOON_MS + days * DAY_MS
