"""Usage over a span of time: the report of API and command line, the overview of the page, and the spending rate.

Days are days in UTC. Money is in nano-dollars here, and in dollars in what is shown.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.core.spans import DAY_MS, Span, day_of

GroupBy = Literal["day", "model", "key", "account"]
GROUPS: tuple[GroupBy, ...] = ("day", "model", "key")  # of one account
GROUPS_OF_ALL: tuple[GroupBy, ...] = (*GROUPS, "account")
SPENDING_DAYS = 7
LASTS_MS_MAX = 3650 * DAY_MS  # a later end of the credit is not told


class Counters(msgspec.Struct, frozen=True):
    """Requests, tokens and their cost."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


NOTHING = Counters(0, 0, 0, 0, 0)


class Report(msgspec.Struct, frozen=True):
    """The usage of an account, or of all, over a span, and the balance now."""

    span: Span
    balance_nano: int
    totals: Counters
    group_by: GroupBy
    groups: list[tuple[str, Counters]]  # one of each day (such as 2026-01-31), class, key or address

    def rows(self) -> list[dict[str, int | str]]:
        return [{self.group_by: name, **_counters_object(counters)} for name, counters in self.groups]

    def shown(self) -> dict[str, Any]:
        return {
            **report_head(self.span, self.balance_nano),
            "totals": _counters_object(self.totals),
            "data": self.rows(),
        }


def report_head(span: Span, balance_nano: int) -> dict[str, Any]:
    """The fields that every report begins with."""
    return {
        "object": "usage",
        "start": span.start_ms // 1000,
        "end": span.end_ms // 1000,
        "balance": format_dollars(balance_nano),
        "currency": "USD",
    }


class DayUsage(msgspec.Struct, frozen=True):
    """One day (such as 2026-01-31), and the usage of each class. A class without requests is left out."""

    day: str
    by_class: dict[str, Counters]

    @property
    def totals(self) -> Counters:
        return sum_counters(self.by_class.values())


class KeyUsage(msgspec.Struct, frozen=True):
    """The usage of one key."""

    id: str
    name: str
    prefix: str
    counters: Counters


class Overview(msgspec.Struct, frozen=True):
    """An account's usage by day and class, without gaps, and of the keys that cost most."""

    span: Span
    days: list[DayUsage]
    keys: list[KeyUsage]
    keys_in_all: int

    @property
    def totals(self) -> Counters:
        return sum_counters(day.totals for day in self.days)

    @property
    def by_class(self) -> dict[str, Counters]:
        names = sorted({name for day in self.days for name in day.by_class})
        return {name: sum_counters(day.by_class.get(name, NOTHING) for day in self.days) for name in names}


class SpendingRate(msgspec.Struct, frozen=True):
    """Extrapolates recent spending: the average per day, and when the credit is used up; None if years away."""

    per_day_nano: int
    days: int  # that it was measured over
    lasts_until_ms: int | None


def sum_counters(many: Iterable[Counters]) -> Counters:
    columns = zip(*map(msgspec.structs.astuple, (NOTHING, *many)), strict=True)
    return Counters(*map(sum, columns))


def fill_days(span: Span, found: Iterable[tuple[int, str, Counters]]) -> list[DayUsage]:
    """Every day of a span, from what was found for some days (since the epoch) and classes."""
    days: dict[int, dict[str, Counters]] = {
        number: {} for number in range(span.start_ms // DAY_MS, -(-span.end_ms // DAY_MS))
    }
    for number, class_id, counters in found:
        days[number][class_id] = counters
    return [DayUsage(day_name(number), by_class) for number, by_class in days.items()]


def spending_days(created_at: int, now_ms: int) -> int:
    """Over how many days the spending rate is measured: since the account exists, at most 7."""
    return min(SPENDING_DAYS, max(1, -((created_at - now_ms) // DAY_MS)))


def spending_rate(
    spent_nano: int, days: int, balance_nano: int, now_ms: int, expiring: Sequence[tuple[int, int]] = ()
) -> SpendingRate:
    """`expiring` is the part of the balance that expires: amounts and times, the next first. It is spent first."""
    per_day_nano = spent_nano // days
    if per_day_nano == 0:
        return SpendingRate(per_day_nano, days, None)
    spent_by_then_nano, lost_nano = 0, 0
    for amount_nano, expires_at in expiring:
        most_nano = max(0, expires_at - now_ms) * per_day_nano // DAY_MS
        used_nano = min(amount_nano, max(0, most_nano - spent_by_then_nano))
        spent_by_then_nano += used_nano
        lost_nano += amount_nano - used_nano
    lasts_ms = max(0, balance_nano - lost_nano) * DAY_MS // per_day_nano
    return SpendingRate(per_day_nano, days, now_ms + lasts_ms if lasts_ms <= LASTS_MS_MAX else None)


def parse_group(text: str | None, groups: Sequence[GroupBy] = GROUPS, also: str = "") -> GroupBy:
    """`also` is a group that the caller knows and reads otherwise."""
    for group in groups:
        if group == (text or "day"):
            return group
    raise ValueError(f"group_by: must be one of {', '.join([*groups, *filter(None, [also])])}.")


def day_name(days_since_epoch: int) -> str:
    return day_of(days_since_epoch * DAY_MS)


def _counters_object(counters: Counters) -> dict[str, int | str]:
    shown = msgspec.structs.asdict(counters)
    cost = format_dollars(shown.pop("cost_nano"))
    return {**shown, "cost": cost}
