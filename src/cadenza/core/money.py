"""Money is an integer of nano-dollars. Decimal dollars exist only at the edges and are converted exactly, here."""

import re

import msgspec

from cadenza.core.records import CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX, Usage

NANO_PER_DOLLAR = 1_000_000_000
NANO_PER_CENT = NANO_PER_DOLLAR // 100
DECIMALS = 9
TOKENS_PER_PRICE = 1_000_000
AMOUNT_NANO_MAX = 1_000_000_000 * NANO_PER_DOLLAR  # a billion dollars; more is a typing error
DIGITS_MAX = 10  # of a billion
SHOWN_CHARS = 40
AMOUNT = re.compile(r"(?=\.?[0-9])(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?")


class Price(msgspec.Struct, frozen=True):
    """What one token of a class costs, in nano-dollars. Without a cached price, cached tokens cost as much as input."""

    input_nano: int
    output_nano: int
    cached_input_nano: int | None = None

    def quote(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a request can cost: nothing of its prompt is cached, all of its output is used."""
        return prompt_tokens * self.input_nano + output_tokens * self.output_nano

    def charge(self, usage: Usage) -> int:
        """What a reply costs."""
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
        assert usage.completion_tokens >= 0
        full_nano = usage.prompt_tokens * self.input_nano + usage.completion_tokens * self.output_nano
        if self.cached_input_nano is None:
            return full_nano
        return full_nano - usage.cached_tokens * (self.input_nano - self.cached_input_nano)

    def affordable(self, credit_nano: int, prompt_tokens: int) -> int:
        """How many output tokens a credit pays for after the prompt; negative if it does not pay for the prompt."""
        left_nano = credit_nano - prompt_tokens * self.input_nano
        if self.output_nano == 0:
            return OUTPUT_TOKENS_MAX if left_nano >= 0 else -1
        return left_nano // self.output_nano

    def affordable_prompt(self, credit_nano: int, output_tokens: int) -> int:
        """How many prompt tokens a credit pays for besides `output_tokens`; negative if it does not pay for those."""
        left_nano = credit_nano - output_tokens * self.output_nano
        if self.input_nano == 0:
            return CONTEXT_TOKENS_MAX if left_nano >= 0 else -1
        return left_nano // self.input_nano


def parse_dollars(text: str) -> int:
    """'4.98' -> nano-dollars. ValueError with the reason if the amount is inexact, negative or absurdly large.

    ASCII digits and a point only: other digits, signs, exponents, underscores and spaces are easily misread.
    """
    found = AMOUNT.fullmatch(text)
    if found is None:
        if text.startswith("-") and AMOUNT.fullmatch(text[1:]):
            raise ValueError(f"{text} is negative; write an amount like 5.00")
        raise ValueError(f"{_shown(text)} is not an amount of dollars; write it like 5.00")
    whole, decimals = found["whole"].lstrip("0"), (found["decimals"] or "").rstrip("0")
    if len(whole) > DIGITS_MAX:
        raise ValueError(f"{_shown(text)} is more than {AMOUNT_NANO_MAX // NANO_PER_DOLLAR:,} dollars")
    if len(decimals) > DECIMALS:
        raise ValueError(f"{_shown(text)} has more than 9 decimals; a nano-dollar is the smallest amount")
    amount_nano = int(whole or "0") * NANO_PER_DOLLAR + int(decimals.ljust(DECIMALS, "0"))
    if amount_nano > AMOUNT_NANO_MAX:
        raise ValueError(f"{text} is more than {AMOUNT_NANO_MAX // NANO_PER_DOLLAR:,} dollars")
    return amount_nano


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")


def parse_price(text: str) -> int:
    """Dollars per million tokens -> nano-dollars per token, which must be a whole number."""
    nano, rest = divmod(parse_dollars(text), TOKENS_PER_PRICE)
    if rest:
        raise ValueError(f"{text} dollars per million tokens is not a whole number of nano-dollars a token")
    return nano


def format_dollars(nano: int) -> str:
    """Exact, with at least two decimals: 5000000000 -> '5.00', 20 -> '0.00000002'."""
    sign = "-" if nano < 0 else ""
    whole, part = divmod(abs(nano), NANO_PER_DOLLAR)
    decimals = f"{part:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
