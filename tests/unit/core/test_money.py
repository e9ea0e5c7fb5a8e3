"""Money: exact both ways, refused where it cannot be, and the prices of the classes to the nano-dollar."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars, parse_dollars, parse_price


@settings(max_examples=150, deadline=None)
@given(st.integers(0, AMOUNT_NANO_MAX))
def test_what_is_shown_is_read_back(amount_nano: int) -> None:
    """Every amount, written as dollars and read again, is the same amount."""
    assert parse_dollars(format_dollars(amount_nano)) == amount_nano


@settings(max_examples=150, deadline=None)
@given(st.integers())
def test_dollars_have_two_to_nine_decimals(amount_nano: int) -> None:
    """An amount is shown plainly: a sign where it is negative, no exponent, no more zeros than cents need."""
    assert re.fullmatch(r"-?\d+\.(\d\d|\d{2,8}[1-9])", format_dollars(amount_nano))
    assert format_dollars(amount_nano).startswith("-") == (amount_nano < 0)


@pytest.mark.parametrize(
    ("amount_nano", "text"),
    [
        (0, "0.00"),
        (20, "0.00000002"),
        (5_000_000_000, "5.00"),
        (4_980_000_000, "4.98"),
        (4_987_654_321, "4.987654321"),
        (-1_500_000_000, "-1.50"),
        (-1, "-0.000000001"),
    ],
)
def test_how_dollars_are_shown(amount_nano: int, text: str) -> None:
    """Amounts as the pages and the usage endpoint show them."""
    assert format_dollars(amount_nano) == text


@pytest.mark.parametrize(
    ("text", "amount_nano"),
    [
        ("5", 5_000_000_000),
        ("5.00", 5_000_000_000),
        ("0", 0),
        (".5", 500_000_000),
        ("0.000000001", 1),
        ("1000000000", AMOUNT_NANO_MAX),
        ("4.9800000000000", 4_980_000_000),
    ],
)
def test_how_dollars_may_be_written(text: str, amount_nano: int) -> None:
    """Whole dollars, decimals down to a nano-dollar, and zeros behind them."""
    assert parse_dollars(text) == amount_nano


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an amount"),
        ("five", "not an amount"),
        ("5,00", "not an amount"),
        ("$5", "not an amount"),
        ("NaN", "not an amount"),
        ("sNaN", "not an amount"),
        ("Infinity", "not an amount"),
        ("-Infinity", "not an amount"),
        ("-0.01", "negative"),
        ("-5", "negative"),
        ("1000000000.01", "more than 1,000,000,000 dollars"),
        ("1e30", "more than 1,000,000,000 dollars"),
        ("0.0000000001", "more than 9 decimals"),
        ("1.2345678901", "more than 9 decimals"),
        ("1e-10", "more than 9 decimals"),
    ],
)
def test_what_is_no_amount_is_refused_with_its_reason(text: str, reason: str) -> None:
    """Inexact, negative and absurd amounts are refused, and the sentence says which it is."""
    with pytest.raises(ValueError, match=reason):
        parse_dollars(text)


@pytest.mark.parametrize(
    ("text", "nano"),
    [("0.10", 100), ("0.21", 210), ("0.02", 20), ("1.07", 1_070), ("3.45", 3_450), ("17.25", 17_250), ("0", 0)],
)
def test_prices_of_the_classes_are_exact(text: str, nano: int) -> None:
    """Every documented price per million tokens is a whole number of nano-dollars a token."""
    assert parse_price(text) == nano


@pytest.mark.parametrize("text", ["0.0005", "1.0705", "0.000000001"])
def test_a_price_that_is_not_whole_is_refused(text: str) -> None:
    """A price that is no whole number of nano-dollars a token could not be charged exactly."""
    with pytest.raises(ValueError, match="whole number of nano-dollars"):
        parse_price(text)


@pytest.mark.parametrize("text", ["1e999999", "1e1000000", "9" * 400 + "e999999"])
def test_an_absurd_exponent_is_refused_like_any_absurd_amount(text: str) -> None:
    """A number too large for decimal arithmetic is refused with a ValueError as well."""
    with pytest.raises(ValueError, match="more than 1,000,000,000 dollars"):
        parse_dollars(text)


@pytest.mark.parametrize("text", ["1.0000000000000000000000000000001", "1e-2000000", "0." + "0" * 40 + "1"])
def test_an_amount_of_very_many_decimals_is_refused_not_rounded(text: str) -> None:
    """More decimals than decimal arithmetic keeps are still more than 9."""
    with pytest.raises(ValueError, match="more than 9 decimals"):
        parse_dollars(text)
