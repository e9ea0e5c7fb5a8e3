"""Cells of a CSV file that is opened in a spreadsheet."""

import re

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def escape_formula(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a single quote in front. Numbers stay numbers."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value
