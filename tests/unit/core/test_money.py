"""Money: exact in both directions, refused if it cannot be exact, and charged to the nano-dollar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.money import AMOUNT_NANO_MAX, Price, format_dollars, parse_dollars, parse_price
from cadenza.core.records import CONTEXT_TOKENS_MAX, Usage

MEZZO = Price(100, 210, 20)
FORTE = Price(1_070, 3_450)
FORTISSIMO = Price(3_450, 17_250)
FREE = Price(0, 0)

tokens = st.integers(0, 1_000_000)
nanos = st.integers(0, 100_000)
prices = st.builds(Price, nanos, nanos, st.none() | nanos)


@given(st.integers(0, AMOUNT_NANO_MAX))
def test_a_formatted_amount_is_parsed_back(amount_nano: int) -> None:
    """Any amount, formatted as dollars and parsed again, is the same amount."""
    assert parse_dollars(format_dollars(amount_nano)) == amount_nano


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
def test_how_dollars_are_formatted(amount_nano: int, text: str) -> None:
    """Known amounts have the form of the pages and the usage endpoint."""
    assert format_dollars(amount_nano) == text


INVALID = {
    "not an amount": ["", "five", "5,00", "$5", "NaN", "sNaN", "Infinity", "-Infinity"],
    "negative": ["-0.01", "-5"],
    "more than 1,000,000,000 dollars": ["1000000000.01", "9" * 5000],
    "more than 9 decimals": ["0.0000000001", "1.2345678901", "0." + "1" * 5000],
}


@pytest.mark.parametrize(("text", "reason"), [(text, reason) for reason, texts in INVALID.items() for text in texts])
def test_an_invalid_amount_is_refused_with_the_reason(text: str, reason: str) -> None:
    """Amounts that are inexact, negative, too large or not a number are refused, and the message says which."""
    with pytest.raises(ValueError, match=reason):
        parse_dollars(text)


ODD_NUMBERS = "1e3 1E3 1e-2 1e30 0e0 1e999999 0x10 1_000 1__0 1,000 1'000 +5 --5 - -. . −5 nan inf -inf 1.2.3"
OTHER_DIGITS = "٥ ٥.٠٠ ５ ５．００ 1．5 ५ 𝟓 ² Ⅴ 1٫5"
BLANKS = (" 5", "5 ", "5\n", "\t5", "5\u00a0", "\u30005", "5 0", "5\x00", "5\u200b")


@pytest.mark.parametrize("text", [*ODD_NUMBERS.split(), *OTHER_DIGITS.split(), *BLANKS])
def test_an_amount_has_ascii_digits_and_a_point_only(text: str) -> None:
    """Digits of other scripts, exponents, signs, separators and spaces are no amount, and no price."""
    for parse in (parse_dollars, parse_price):
        with pytest.raises(ValueError, match="is not an amount of dollars; write it like"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "nano"),
    [("0.10", 100), ("0.21", 210), ("0.02", 20), ("1.07", 1_070), ("3.45", 3_450), ("17.25", 17_250), ("0", 0)],
)
def test_prices_of_the_classes_are_exact(text: str, nano: int) -> None:
    """Every documented price per million tokens is a whole number of nano-dollars per token."""
    assert parse_price(text) == nano


@pytest.mark.parametrize("text", ["0.0005", "1.0705", "0.000000001"])
def test_a_price_that_cannot_be_charged_exactly_is_refused(text: str) -> None:
    """A price must be a whole number of nano-dollars per token."""
    with pytest.raises(ValueError, match="whole number of nano-dollars"):
        parse_price(text)


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (MEZZO, Usage(1_000_000, 0), "0.10"),
        (MEZZO, Usage(0, 1_000_000), "0.21"),
        (MEZZO, Usage(1_000_000, 0, 1_000_000), "0.02"),
        (FORTE, Usage(1_000_000, 0), "1.07"),
        (FORTE, Usage(0, 1_000_000), "3.45"),
        (FORTE, Usage(1_000_000, 0, 1_000_000), "1.07"),
        (FORTISSIMO, Usage(1_000_000, 0), "3.45"),
        (FORTISSIMO, Usage(0, 1_000_000), "17.25"),
        (FORTISSIMO, Usage(1_000_000, 0, 1_000_000), "3.45"),
        (MEZZO, Usage(11, 7, 3), "0.00000233"),
        (FORTE, Usage(11, 7, 3), "0.00003592"),
        (FORTISSIMO, Usage(11, 7, 3), "0.0001587"),
        (MEZZO, Usage(1, 0), "0.0000001"),
        (FORTISSIMO, Usage(0, 0), "0.00"),
    ],
)
def test_what_a_reply_costs(price: Price, usage: Usage, cost: str) -> None:
    """A million tokens cost the listed price, and a few tokens cost their exact share of it."""
    assert format_dollars(price.charge(usage)) == cost


@pytest.mark.parametrize("usage", [Usage(-1, 0), Usage(0, -1), Usage(5, 0, -1), Usage(5, 0, 6), Usage(-5, 9)])
def test_impossible_counts_are_never_charged(usage: Usage) -> None:
    """Negative counts and more cached tokens than prompt fail an assertion and credit nobody."""
    with pytest.raises(AssertionError):
        MEZZO.charge(usage)


@given(nanos, nanos, st.data())
def test_a_quote_is_the_most_that_a_reply_can_cost(input_nano: int, output_nano: int, data: st.DataObject) -> None:
    """A reply within the quoted tokens never costs more than the quote; with all of them and no cache, exactly that."""
    price = Price(input_nano, output_nano, data.draw(st.none() | st.integers(0, input_nano)))
    prompt, output = data.draw(tokens), data.draw(tokens)
    usage = Usage(prompt, data.draw(st.integers(0, output)), data.draw(st.integers(0, prompt)))
    assert price.charge(usage) <= price.quote(prompt, output)
    assert price.charge(Usage(prompt, output)) == price.quote(prompt, output)


@given(prices, st.integers(0, 10**12), tokens)
def test_the_affordable_output_is_the_most_that_the_credit_covers(price: Price, credit_nano: int, prompt: int) -> None:
    """Its quote is within the credit, and that of one more token is not, unless output is free."""
    output = price.affordable(credit_nano, prompt)
    if output >= 0:
        assert price.quote(prompt, output) <= credit_nano
    else:
        assert price.quote(prompt, 0) > credit_nano
    assert not price.output_nano or price.quote(prompt, output + 1) > credit_nano


def test_how_much_prompt_a_credit_pays_for() -> None:
    """It is what is left beside the output, in whole tokens. A free prompt is bounded by the largest window."""
    assert Price(10, 100).affordable_prompt(1_059, 10) == 5
    assert Price(10, 100).affordable_prompt(999, 10) < 0
    assert FREE.affordable_prompt(0, 10) == CONTEXT_TOKENS_MAX
    assert Price(0, 1).affordable_prompt(9, 10) < 0
