"""Rows of cells to lines that a model reads as a table."""

from collections.abc import Iterator, Sequence


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as a Markdown table whose first row is its head. Empty rows are left out."""
    width = max(map(len, rows), default=0)
    is_first = True
    for row in rows:
        cells = [cell_text(cell) for cell in row]
        if not any(cells):
            continue
        if is_first:
            cells += [""] * (width - len(cells))
        yield f"| {' | '.join(cells)} |"
        if is_first:
            yield f"|{' --- |' * width}"
            is_first = False


def cell_text(text: str) -> str:
    """One line, in which a bar does not end the cell."""
    return " ".join(text.split()).replace("|", "\\|")
