"""How values are written for other programs: times, and the cells of CSV files."""

import re
from datetime import UTC, datetime

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def rfc3339_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


def escape_formula(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a single quote in front. Numbers stay numbers."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value
