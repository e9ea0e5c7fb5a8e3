"""Finds the tables in a text, and splits them into rows, so that a question gets the rows that it needs.

A table is a text of separated values, or a Markdown table in a text, as the readers of spreadsheets, HTML and DOCX make
them. Its head is shown with any of its rows. Joined, the pieces of a text are the text.
"""

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from cadenza.core.content import Content

ROWS_MIN = 20  # a table with fewer is split like other text
ROW_CHARS_MAX = 4_000  # a quote that is never closed does not make one row of a file
TRIED_ROWS = 50
ALIKE_SHARE = 0.9  # of these rows have as many cells as the head
SEPARATORS = ",;\t|"
MARKDOWN_TABLE = re.compile(r"^\|[^\n]*\|\n\|(?: :?-+:? \|)+\n(?:\|[^\n]*\|(?:\n|\Z))++", re.MULTILINE)
LETTERS = "|  |"  # the head of a sheet, whose first row has the names of its columns


class TableText(Content, msgspec.Struct, frozen=True):
    """A table: its head, and its rows with their line ends."""

    head: str
    rows: list[str]


def find_tables(text: str) -> Iterator[str | TableText]:
    """The text in pieces: tables, and what is between them."""
    table = _separated_values(text)
    if table:
        yield table
        return
    end = 0
    for found in MARKDOWN_TABLE.finditer(text):
        lines = found[0].splitlines(keepends=True)
        heads = 3 if lines[0].startswith(LETTERS) else 2
        if len(lines) - heads < ROWS_MIN:
            continue
        if text[end : found.start()]:
            yield text[end : found.start()]
        yield TableText("".join(lines[:heads]), lines[heads:])
        end = found.end()
    if text[end:]:
        yield text[end:]


def _separated_values(text: str) -> TableText | None:
    first, _, _ = text.partition("\n")
    separator = max(SEPARATORS, key=first.count)
    cells = first.count(separator)
    if not cells or first.startswith(("|", "{", "[")):
        return None
    rows = _rows(text)
    tried = list(islice(rows, TRIED_ROWS))
    alike = sum(_outside_quotes(row).count(separator) == cells for row in tried)
    if len(tried) <= ROWS_MIN or alike < ALIKE_SHARE * len(tried):
        return None
    return TableText(tried[0], [*tried[1:], *rows])


def _rows(text: str) -> Iterator[str]:
    """Lines, joined where a cell in quotes has line breaks."""
    row = ""
    for line in text.splitlines(keepends=True):
        row += line
        if row.count('"') % 2 == 0 or len(row) > ROW_CHARS_MAX:
            yield row
            row = ""
    if row:
        yield row


def _outside_quotes(row: str) -> str:
    return "".join(row.split('"')[::2]) if '"' in row else row
