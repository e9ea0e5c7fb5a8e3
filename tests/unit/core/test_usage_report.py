"""The usage report: spans of time in every form, groups, and money in dollars."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.usage_report import Counters, Group, GroupBy, Report, Span, day_name, parse_group, parse_span

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("said", "moment_ms"),
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
def test_moments_may_be_written_in_every_usual_way(said: str, moment_ms: int) -> None:
    """RFC 3339 with any offset, a fraction or none at all, a day, and Unix seconds; without an offset it is UTC."""
    assert parse_span(said, "2100-01-01T00:00:00Z", NOW).start_ms == moment_ms


@settings(max_examples=200, deadline=None)
@given(
    st.integers(DAY_MS // 1000, 7_000_000_000),
    st.integers(-14 * 60, 14 * 60),
)
def test_an_offset_never_changes_the_moment(moment_s: int, offset_min: int) -> None:
    """A moment written with any offset, and as Unix seconds, is the same moment."""
    there = datetime.fromtimestamp(moment_s, timezone(timedelta(minutes=offset_min)))
    for said in (there.isoformat(), str(moment_s)):
        assert parse_span(said, "8999-01-01", NOW).start_ms == moment_s * 1000


@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize(
    "said",
    [
        "yesterday",
        "2026-13-01",
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
def test_a_moment_that_is_none_is_refused_by_its_name(name: str, said: str) -> None:
    """Nonsense and moments out of reach are refused, and the sentence begins with the field at fault."""
    start, end = (said, None) if name == "start" else (None, said)
    with pytest.raises(ValueError, match=f"^{name}: must be a time"):
        parse_span(start, end, NOW)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-01-31T12:00:01Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+01:00"),
        ("2026-02-02", None),
    ],
)
def test_a_span_that_ends_before_it_begins_is_refused(start: str, end: str | None) -> None:
    """Reversed, empty, reversed by its offsets, and begun in the future: a span has a length."""
    with pytest.raises(ValueError, match=r"^start: must be before end\.$"):
        parse_span(start, end, NOW)


@pytest.mark.parametrize("nothing", [None, ""])
def test_by_default_a_span_is_the_last_thirty_days(nothing: str | None) -> None:
    """It ends just after now, so that what was used this very moment is in it."""
    span = parse_span(nothing, nothing, NOW)
    assert span.start_ms < NOON_MS - 30 * DAY_MS + 2000
    assert NOON_MS < span.end_ms <= NOON_MS + 1000
    assert span.end_ms - span.start_ms == 30 * DAY_MS


def test_an_end_alone_has_the_thirty_days_before_it() -> None:
    """The default start follows the end that was given."""
    assert parse_span(None, "2026-01-31T12:00:00Z", NOW) == Span(NOON_MS - 30 * DAY_MS, NOON_MS)


@pytest.mark.parametrize(
    ("said", "group"), [(None, "day"), ("", "day"), ("day", "day"), ("model", "model"), ("key", "key")]
)
def test_groups_are_by_day_unless_said(said: str | None, group: GroupBy) -> None:
    """Day, model and key; nothing said is by day."""
    assert parse_group(said) == group


@pytest.mark.parametrize("said", ["Day", "days", "class", " day", "day,model"])
def test_an_unknown_group_is_refused_with_those_there_are(said: str) -> None:
    """The sentence names all three."""
    with pytest.raises(ValueError, match=r"^group_by: must be one of day, model, key\.$"):
        parse_group(said)


@pytest.mark.parametrize(("days", "name"), [(0, "1970-01-01"), (20_484, "2026-01-31"), (11_016, "2000-02-29")])
def test_a_day_is_named_as_in_a_calendar(days: int, name: str) -> None:
    """Days since the epoch, in UTC."""
    assert day_name(days) == name


def test_a_report_is_shown_in_dollars_and_seconds() -> None:
    """The shape of the usage endpoint: money as decimal strings, and each group under the name of its kind."""
    one = Counters(2, 30, 4, 10, 66_580)
    report = Report(Span(1_500, 2_999), 4_999_933_420, one, "model", [Group("forte", one)])
    counters = {"requests": 2, "prompt_tokens": 30, "cached_tokens": 4, "completion_tokens": 10, "cost": "0.00006658"}
    assert report.shown() == {
        "object": "usage",
        "start": 1,
        "end": 2,
        "balance": "4.99993342",
        "currency": "USD",
        "totals": counters,
        "data": [{"model": "forte", **counters}],
    }
