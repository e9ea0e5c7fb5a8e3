"""How values are written for other programs: times, amounts, and the cells of CSV files."""

import re
from datetime import UTC, datetime

from msgspec import UNSET

from cadenza.core.money import format_dollars

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def rfc3339_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


def dollars_or_none(amount_nano: int | None) -> str | None:
    return None if amount_nano is None else format_dollars(amount_nano)


def read_field(source: object, name: str) -> object:
    """A field of a record for other programs: UNSET if it has none of this name.

    A time (`at`, `created_at`, …) becomes RFC 3339; an amount `x` is read from `x_nano` and becomes dollars.
    """
    if hasattr(source, f"{name}_nano"):
        return dollars_or_none(getattr(source, f"{name}_nano"))
    value: object = getattr(source, name, UNSET)
    is_time = name == "at" or name.endswith("_at")
    return rfc3339(value) if is_time and isinstance(value, int) else value


def escape_formula(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a single quote in front. Numbers stay numbers."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value
