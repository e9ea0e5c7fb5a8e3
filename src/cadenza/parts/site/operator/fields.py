"""What operators type into fields of forms. BadForm says what is wrong."""

from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.money.credit import read_dollars

DIGITS_MAX = 5


def read_amount(text: str) -> int:
    """Dollars above zero, in nano-dollars."""
    amount_nano = read_dollars(text)
    if amount_nano == 0:
        raise BadForm("The amount must be above zero.")
    return amount_nano


def read_days(text: str) -> int | None:
    """None if nothing was typed."""
    text = text.strip()
    if text and not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise BadForm("Write after how many days the credit expires, like 90, or nothing.")
    return int(text) if text else None
