"""Tables as CSV: the only writer of it, for the pages, the archive of an account and the command line."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from cadenza.core.formats import escape_formula


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The rows as lines. Text that a spreadsheet would run as a formula is escaped; None is an empty cell."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([escape_formula(cell) for cell in row] for row in rows)
    return lines.getvalue()


def csv_table(fields: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A header, and these fields of each row."""
    return csv_text([fields, *([row[name] for name in fields] for row in rows)])
