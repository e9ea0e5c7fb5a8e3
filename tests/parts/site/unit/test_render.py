"""Money on pages: rounded for reading, the exact amount in the title; in a column exact, with one number of digits."""

import pytest

from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceSchedule
from cadenza.parts.site.render import dollars, dollars_column, price_column

CENT = 10**7
AMOUNTS = [  # nano-dollars, the digits of the column or none, and the text
    (0, None, "$0.00"),
    (500 * CENT, None, "$5.00"),
    (4_999_999_999, None, "$4.99"),
    (123_456_789_012_345, None, "$123,456.78"),
    (1_000_000_000_000_000_000, None, "$1,000,000,000.00"),
    (999_999_999, None, "$0.9999"),
    (12_345_678, None, "$0.0123"),
    (99_999, None, "<$0.0001"),
    (-250 * CENT, None, "−$2.50"),
    (-1, None, "−<$0.0001"),
    (53_210, 6, "$0.000053"),
    (999, 6, "<$0.000001"),
    (0, 6, "$0.000000"),
    (-12_345 * CENT, 4, "−$123.4500"),
]


@pytest.mark.parametrize(("amount_nano", "digits", "text"), AMOUNTS)
def test_amounts_are_rounded_for_reading(amount_nano: int, digits: int | None, text: str) -> None:
    """Two digits, four below a dollar, or those of the column; never more than it is, and never zero if it is not."""
    assert dollars(amount_nano, digits).striptags() == text


def test_a_rounded_amount_has_the_exact_one_in_its_title() -> None:
    """An exact one has none."""
    assert dollars(-12_345_678) == '<span title="−$0.012345678">−$0.0123</span>'
    assert dollars(99_999) == '<span title="$0.000099999">&lt;$0.0001</span>'
    assert dollars(250 * CENT) == "$2.50"


def test_a_column_has_one_number_of_digits() -> None:
    """As many as its amounts need, and at least two. So the points are aligned, and the lines add up to the total."""
    for amounts, texts in (
        ([], []),
        ([CENT, 500 * CENT], ["$0.01", "$5.00"]),
        ([500 * CENT, -1_500_000], ["$5.0000", "−$0.0015"]),
        ([149_617_388_500, 500, 149_617_389_000], ["$149.6173885", "$0.0000005", "$149.6173890"]),
        ([500 * CENT, 1], ["$5.000000000", "$0.000000001"]),
    ):
        shown = dollars_column(amounts)
        assert [shown(amount).striptags() for amount in amounts] == texts


def test_prices_are_aligned_too() -> None:
    """By the million tokens; a price without one for cached tokens is no reason for digits."""
    shown = price_column([PriceSchedule(Price(100, 210, 75)), PriceSchedule(Price(1070, 3450))], now_ms=0)
    assert [shown(price) for price in (100, 75, 3450)] == ["$0.100", "$0.075", "$3.450"]
