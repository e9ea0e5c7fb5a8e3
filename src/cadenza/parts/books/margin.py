"""What requests earned and what providers charged for them, in groups.

What was earned is also known by the credit that paid for it, of an account or a month: entries have no class.

A request whose provider's costs are not in the config has an unknown cost. It is counted apart, and is not a part of
the margin: `earned_nano` has it, `margin_nano` does not.
"""

from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

from cadenza.core.money import format_dollars

MarginGroup = Literal["class", "provider", "account", "month"]
MARGIN_GROUPS: tuple[MarginGroup, ...] = get_args(MarginGroup)
REVENUE_GROUPS = ("account", "month")  # of which it is known what which credit paid for
REVENUE_COLUMNS = ("paid", "granted", "refunded")
COLUMNS = ("requests", "earned", "cost", "margin", "percent", "unknown_requests", "unknown_earned")


class MarginSums(msgspec.Struct, frozen=True):
    """Requests with tokens, what they were charged, and what they cost where that is known."""

    requests: int = 0
    earned_nano: int = 0
    cost_nano: int = 0
    unknown_requests: int = 0  # whose cost is not known
    unknown_earned_nano: int = 0  # what those were charged

    @property
    def margin_nano(self) -> int:
        return self.earned_nano - self.unknown_earned_nano - self.cost_nano

    @property
    def percent(self) -> float | None:
        """Of what the requests with a known cost earned."""
        known_nano = self.earned_nano - self.unknown_earned_nano
        return round(100 * self.margin_nano / known_nano, 1) if known_nano else None

    def shown(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "earned": format_dollars(self.earned_nano),
            "cost": format_dollars(self.cost_nano),
            "margin": format_dollars(self.margin_nano),
            "percent": self.percent,
            "unknown_requests": self.unknown_requests,
            "unknown_earned": format_dollars(self.unknown_earned_nano),
        }


class Revenue(msgspec.Struct, frozen=True):
    """What charges took of paid and of granted credit, and what refunds of requests gave back."""

    paid_nano: int = 0
    granted_nano: int = 0
    refunded_nano: int = 0
    refunded_granted_nano: int = 0  # the granted part of it

    def __add__(self, other: "Revenue") -> "Revenue":
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Revenue(*map(int.__add__, mine, others))

    def shown(self) -> dict[str, str]:
        return {name: format_dollars(getattr(self, f"{name}_nano")) for name in REVENUE_COLUMNS}


def add_margins(many: Iterable[MarginSums]) -> MarginSums:
    columns = zip(*map(msgspec.structs.astuple, (MarginSums(), *many)), strict=True)
    return MarginSums(*map(sum, columns))


class MarginRow(msgspec.Struct, frozen=True):
    """A class, provider, account or month; without a name, requests of which that is not known."""

    name: str
    sums: MarginSums
    revenue: Revenue | None  # None: of this group it is not known


class MarginReport(msgspec.Struct, frozen=True):
    """The rows of a group, and what charges took of which credit in all of them."""

    group: MarginGroup
    rows: list[MarginRow]
    credit: Revenue

    @property
    def total_row(self) -> MarginRow:
        sums = add_margins(row.sums for row in self.rows)
        return MarginRow("total", sums, self.credit if self.group in REVENUE_GROUPS else None)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.group, *COLUMNS, *(REVENUE_COLUMNS if self.group in REVENUE_GROUPS else ()))

    def shown(self, row: MarginRow) -> dict[str, Any]:
        """A row, by `columns`."""
        revenue = row.revenue.shown() if row.revenue else {}
        return {self.group: row.name or "(unknown)", **row.sums.shown(), **revenue}

    def sentences(self) -> list[str]:
        credit, unknown = self.credit, self.total_row.sums.unknown_requests
        charged = (
            f"Charged: {format_dollars(credit.paid_nano)} of paid credit, {format_dollars(credit.granted_nano)} of "
            f"granted credit. Refunds of requests: {format_dollars(credit.refunded_nano)}, of which "
            f"{format_dollars(credit.refunded_granted_nano)} is granted credit."
        )
        not_known = (
            f"Requests whose cost is not known: {unknown}. They are not in the margin. Set cost_input and cost_output "
            "of every route; requests that ended before keep an unknown cost."
        )
        return [charged, not_known] if unknown else [charged]
