"""The prices of a class over time: the price in effect, and changes that take effect on a date.

The price of a request is the one of the moment at which its hold is made, by the clock of the process that serves it.
Nothing happens at the moment of a change: the schedule is read with the time of each hold.
"""

from collections.abc import Iterable

import msgspec

from cadenza.core.formats import rfc3339
from cadenza.core.money import TOKENS_PER_PRICE, Price, format_dollars


class PriceChange(msgspec.Struct, frozen=True):
    """A price that takes effect at `from_at`, in milliseconds."""

    from_at: int
    price: Price


class PriceSchedule(msgspec.Struct, frozen=True):
    """The price in effect until the first change, and the changes by date."""

    first: Price
    changes: tuple[PriceChange, ...] = ()
    since_at: int | None = None  # when `first` took effect; None: the config gives it

    @classmethod
    def of(cls, configured: Price, changes: Iterable[PriceChange], now_ms: int) -> "PriceSchedule":
        """The config's price is in effect until the first change. Changes before the one in effect are left out."""
        ordered = sorted(changes, key=lambda change: change.from_at)
        begun = [change for change in ordered if change.from_at <= now_ms]
        to_come = tuple(ordered[len(begun) :])
        return cls(begun[-1].price, to_come, begun[-1].from_at) if begun else cls(configured, to_come)

    def at(self, now_ms: int) -> Price:
        """The price in effect at this time."""
        price = self.first
        for change in self.changes:
            if change.from_at > now_ms:
                break
            price = change.price
        return price

    def after(self, now_ms: int) -> tuple[PriceChange, ...]:
        """The changes that have not taken effect."""
        return tuple(change for change in self.changes if change.from_at > now_ms)

    def least_quote(self, prompt_tokens: int, output_tokens: int) -> int:
        """The lowest quote under any of the prices."""
        prices = (self.first, *(change.price for change in self.changes))
        return min(price.quote(prompt_tokens, output_tokens) for price in prices)


class Pricing(msgspec.Struct, frozen=True):
    """A price as the API shows it, in dollars. Without a cached price, cached input costs as much as other input."""

    input: str
    output: str
    cached_input: str | None
    unit: str = "1M tokens"
    currency: str = "USD"


class PricingChange(msgspec.Struct, frozen=True):
    """A change of price as the API shows it: the time at which it takes effect, in UTC, and the price."""

    from_at: str = msgspec.field(name="from")
    input: str
    output: str
    cached_input: str | None


def show_price(price: Price) -> Pricing:
    return Pricing(*_dollars(price))


def show_changes(changes: Iterable[PriceChange]) -> list[PricingChange]:
    return [PricingChange(rfc3339(change.from_at), *_dollars(change.price)) for change in changes]


def describe_price(price: Price) -> str:
    """1.07 input / 3.45 output, and the cached price if there is one. Dollars per million tokens."""
    shown = show_price(price)
    cached = f" / {shown.cached_input} cached input" if shown.cached_input else ""
    return f"{shown.input} input / {shown.output} output{cached}"


def _dollars(price: Price) -> tuple[str, str, str | None]:
    cached_nano = price.cached_input_nano
    return (
        format_dollars(price.input_nano * TOKENS_PER_PRICE),
        format_dollars(price.output_nano * TOKENS_PER_PRICE),
        None if cached_nano is None else format_dollars(cached_nano * TOKENS_PER_PRICE),
    )
