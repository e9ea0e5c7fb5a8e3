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

    def plus(self, other: "Revenue") -> "Revenue":
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Revenue(*map(int.__add__, mine, others))

    def shown(self) -> dict[str, str]:
        return {name: format_dollars(getattr(self, f"{name}_nano")) for name in REVENUE_COLUMNS}


def add_margins(many: Iterable[MarginSums]) -> MarginSums:
    columns = zip(*map(msgspec.structs.astuple, (MarginSums(), *many)), strict=True)
    return MarginSums(*map(sum, columns))
