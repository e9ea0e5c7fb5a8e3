"""The usage report of the API and the command line: a span of time, totals and groups, with money in dollars."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from cadenza.core.money import format_dollars

GroupBy = Literal["day", "model", "key"]
GROUPS: tuple[GroupBy, ...] = ("day", "model", "key")
DEFAULT_SPAN = timedelta(days=30)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


class Span(msgspec.Struct, frozen=True):
    """From `start` up to but not including `end`."""

    start_ms: int
    end_ms: int


class Counters(msgspec.Struct, frozen=True):
    """Requests, tokens and their cost."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int


class Group(msgspec.Struct, frozen=True):
    """The counters of one day (such as 2026-01-31), class or key."""

    of: str
    counters: Counters


class Report(msgspec.Struct, frozen=True):
    """An account's usage over a span, and its balance now."""

    span: Span
    balance_nano: int
    totals: Counters
    group_by: GroupBy
    groups: list[Group]

    def rows(self) -> list[dict[str, int | str]]:
        return [{self.group_by: group.of, **_counters_object(group.counters)} for group in self.groups]

    def shown(self) -> dict[str, Any]:
        return {
            "object": "usage",
            "start": self.span.start_ms // 1000,
            "end": self.span.end_ms // 1000,
            "balance": format_dollars(self.balance_nano),
            "currency": "USD",
            "totals": _counters_object(self.totals),
            "data": self.rows(),
        }


def parse_group(text: str | None) -> GroupBy:
    for group in GROUPS:
        if group == (text or "day"):
            return group
    raise ValueError(f"group_by: must be one of {', '.join(GROUPS)}.")


def parse_span(start: str | None, end: str | None, now: datetime) -> Span:
    """RFC 3339 or Unix seconds, in UTC; by default the last 30 days. A ValueError says what is wrong."""
    end_at = _parse_time("end", end) if end else now + timedelta(seconds=1)
    start_at = _parse_time("start", start) if start else end_at - DEFAULT_SPAN
    if start_at >= end_at:
        raise ValueError("start: must be before end.")
    return Span((start_at - EPOCH) // timedelta(milliseconds=1), (end_at - EPOCH) // timedelta(milliseconds=1))


def day_name(days_since_epoch: int) -> str:
    return (EPOCH + timedelta(days=days_since_epoch)).date().isoformat()


def _parse_time(name: str, text: str) -> datetime:
    try:
        if text.replace(".", "", 1).isdecimal():
            time = EPOCH + timedelta(seconds=float(text))
        else:
            time = datetime.fromisoformat(text.upper())
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: must be a time in RFC 3339, like 2026-01-31T00:00:00Z, or Unix seconds.") from None
    if not EPOCH <= time < LATEST:
        raise ValueError(f"{name}: must be a time after 1970.")
    return time


def _counters_object(counters: Counters) -> dict[str, int | str]:
    return {
        "requests": counters.requests,
        "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens,
        "completion_tokens": counters.completion_tokens,
        "cost": format_dollars(counters.cost_nano),
    }
