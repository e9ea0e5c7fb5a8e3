"""Amounts of dollars that people type."""

from cadenza.core.money import parse_dollars
from cadenza.web.errors import BadForm

CHARS_MAX = 30
EXAMPLE = "Write an amount of dollars, like 5.00."


def read_dollars(text: str) -> int:
    """Nano-dollars; BadForm says what is wrong. A dollar sign in front is fine."""
    text = text.strip().removeprefix("$")
    if not text or len(text) > CHARS_MAX:
        raise BadForm(EXAMPLE)
    try:
        return parse_dollars(text)
    except ValueError as error:
        raise BadForm(f"{error}.") from None
