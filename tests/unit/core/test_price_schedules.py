"""The prices of a class over time."""

import pytest

from cadenza.core.money import Price
from cadenza.core.price_schedules import (
    PriceChange,
    PriceSchedule,
    Pricing,
    PricingChange,
    describe_price,
    show_changes,
    show_price,
)

CONFIGURED, SECOND, THIRD = Price(1_070, 3_450), Price(1_200, 3_600, 200), Price(0, 0)
CHANGES = (PriceChange(2_000, SECOND), PriceChange(3_000, THIRD))


@pytest.mark.parametrize(
    ("now_ms", "price"), [(0, CONFIGURED), (1_999, CONFIGURED), (2_000, SECOND), (2_999, SECOND), (3_000, THIRD)]
)
@pytest.mark.parametrize("read_at_ms", [1_000, 2_000, 2_500, 3_000])
def test_a_change_counts_from_its_moment_on(now_ms: int, price: Price, read_at_ms: int) -> None:
    """The price is that of the newest change that has begun, whenever the schedule was read before."""
    schedule = PriceSchedule.of(CONFIGURED, reversed(CHANGES), read_at_ms)
    if now_ms >= read_at_ms:
        assert schedule.at(now_ms) == price


def test_changes_that_are_over_are_left_out() -> None:
    """A schedule begins with the price that counts, and knows since when; the config's has no date."""
    assert PriceSchedule.of(CONFIGURED, CHANGES, 1_999) == PriceSchedule(CONFIGURED, CHANGES)
    assert PriceSchedule.of(CONFIGURED, CHANGES, 2_000) == PriceSchedule(SECOND, CHANGES[1:], 2_000)
    assert PriceSchedule.of(CONFIGURED, CHANGES, 9_000) == PriceSchedule(THIRD, (), 3_000)
    assert PriceSchedule.of(CONFIGURED, (), 9_000) == PriceSchedule(CONFIGURED)


def test_changes_to_come() -> None:
    """A change is to come until its moment."""
    schedule = PriceSchedule(CONFIGURED, CHANGES)
    assert [schedule.after(now_ms) for now_ms in (1_999, 2_000, 3_000)] == [CHANGES, CHANGES[1:], ()]


def test_the_least_quote_is_under_any_price() -> None:
    """It is a lower bound before a change and after it."""
    assert PriceSchedule(CONFIGURED, CHANGES[:1]).least_quote(1, 1) == 4_520
    assert PriceSchedule(SECOND, (PriceChange(1, CONFIGURED),)).least_quote(1, 1) == 4_520


def test_prices_are_shown_in_dollars_per_million() -> None:
    """Exact dollars, null where cached input has no price of its own, and dates in UTC."""
    assert show_price(CONFIGURED) == Pricing("1.07", "3.45", None)
    assert show_changes([PriceChange(1_796_083_200_000, SECOND)]) == [
        PricingChange("2026-12-01T00:00:00Z", "1.20", "3.60", "0.20")
    ]
    assert describe_price(SECOND) == "1.20 input / 3.60 output / 0.20 cached input"
