"""XLSX to text: each sheet as a table, with the values that its formulas had when it was saved.

A formula without such a value is shown as it is written; nothing is calculated. Cells come from the file one by one,
so a sheet that claims a billion rows costs what its cells cost. Only rows and columns that have a value are shown,
with their numbers and letters. A value in merged cells is shown in each row of them.
"""

import re
from bisect import bisect_left

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.formats.cells import CellFormats, column_letters, column_of, show_number, unescaped
from cadenza.parts.grounding.files.formats.package import (
    Attributes,
    Package,
    XmlReader,
    is_office_package,
    local,
    relation_id,
)
from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.formats.text import parse_count, table_lines
from cadenza.parts.grounding.files.records import Section, Unreadable

NAME_CHARS_MAX = 64
HIDDEN = {"hidden", "veryHidden"}
MERGED = re.compile(r"([A-Za-z]{1,3})([0-9]{1,7}):[A-Za-z]{1,3}([0-9]{1,7})")
CELL_COST = 12  # in characters, charged for each cell in addition to its text, because it takes memory


class _Workbook(XmlReader):
    """The names and relationship ids of the sheets, and the first day of the calendar."""

    def __init__(self) -> None:
        self.sheets: list[tuple[str, str]] = []
        self.counts_from_1904 = False

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "sheet":
            name = " ".join(local(attributes, "name").split())[:NAME_CHARS_MAX]
            hidden = " (hidden)" if local(attributes, "state") in HIDDEN else ""
            self.sheets.append((name + hidden, relation_id(attributes)))
        elif tag == "workbookPr":
            self.counts_from_1904 = local(attributes, "date1904") in {"1", "true"}


class _Strings(XmlReader):
    """The shared strings. Phonetic readings are left out."""

    def __init__(self, budget: ReadBudget) -> None:
        self.found: list[str] = []
        self._budget = budget
        self._pieces: list[str] = []
        self._phonetic = 0
        self._is_text = False

    def start(self, tag: str, attributes: Attributes) -> None:  # noqa: ARG002 every start event has them
        if tag == "si":
            self._pieces = []
        elif tag == "rPh":
            self._phonetic += 1
        self._is_text = tag == "t" and not self._phonetic

    def end(self, tag: str) -> None:
        self._is_text = False
        if tag == "rPh":
            self._phonetic -= 1
        elif tag == "si":
            self._budget.take_chars(CELL_COST)
            self.found.append(unescaped("".join(self._pieces)))

    def text(self, data: str) -> None:
        if self._is_text:
            self._budget.take_chars(len(data))
            self._pieces.append(data)


class _Row(Content, msgspec.Struct):
    """The cells of a row that have a value, by their columns."""

    number: int
    cells: dict[int, str] = {}


class _Sheet(XmlReader):
    """The cells of one sheet."""

    def __init__(self, strings: list[str], formats: CellFormats, budget: ReadBudget) -> None:
        self.rows: list[_Row] = []  # those with a value
        self._strings = strings
        self._formats = formats
        self._budget = budget
        self._row = _Row(0)
        self._kind = ""
        self._style = ""
        self._column = 0
        self._columns: dict[str, int] = {}  # by their letters
        self._parts: dict[str, str] = {}
        self._part = ""

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "c":
            self._kind, self._style = attributes.get("t", ""), attributes.get("s", "")
            self._column = self._column_of(attributes.get("r", ""))
            self._parts = {"v": "", "t": "", "f": ""}
        elif tag == "row":
            # A row without a number, or with one that is too low, follows the one before it.
            self._row = _Row(max(parse_count(attributes.get("r", "")), self._row.number + 1))
            self._column = 0
        elif tag == "rPh":
            self._part = "left out"
        elif tag in self._parts and self._part != "left out":
            self._part = tag
        elif tag == "mergeCell" and (found := MERGED.fullmatch(attributes.get("ref", ""))):
            self._merge(column_of(found[1]), int(found[2]), int(found[3]))

    def end(self, tag: str) -> None:
        if tag in {self._part, "rPh"}:
            self._part = ""
        elif tag == "c":
            self._end_cell()
        elif tag == "row" and self._row.cells:
            self.rows.append(self._row)

    def text(self, data: str) -> None:
        if self._part in self._parts:
            self._budget.take_chars(len(data))
            self._parts[self._part] += data

    def _merge(self, column: int, first: int, last: int) -> None:
        """Copy a value to the merged cells below it. Merged cells come after all rows."""
        index = bisect_left(self.rows, first, key=lambda row: row.number)
        if index == len(self.rows) or self.rows[index].number != first:
            return
        text = self.rows[index].cells.get(column, "")
        for row in self.rows[index + 1 :] if text else ():
            if row.number > last:
                break
            self._budget.take_chars(CELL_COST + len(text))
            row.cells.setdefault(column, text)

    def _column_of(self, reference: str) -> int:
        """A cell without a reference follows the one before it."""
        letters = reference.rstrip("0123456789")
        if letters not in self._columns:
            self._columns[letters] = column_of(letters)
        return self._columns[letters] or self._column + 1

    def _end_cell(self) -> None:
        text = self._shown()
        if text:
            self._budget.take_chars(CELL_COST + (len(text) if self._kind == "s" else 0))
            self._row.cells[self._column] = text

    def _shown(self) -> str:
        value, inline, formula = self._parts.values()
        if self._kind == "s":
            index = parse_count(value, -1)
            return self._strings[index] if 0 <= index < len(self._strings) else ""
        if self._kind == "inlineStr":
            return unescaped(inline or value)
        if not value:  # the result of a formula may be an empty text
            return f"={formula}" if formula and self._kind != "str" else ""
        if self._kind == "b":
            return "TRUE" if value.strip() == "1" else "FALSE"
        if self._kind in {"str", "e", "d"}:
            return unescaped(value)
        return show_number(value, self._formats.find(self._style), self._formats.first_day)


def is_sheets(file: SourceFile) -> bool:
    return is_office_package(file, "xl/", "workbook.xml")


def read_sheets(file: SourceFile) -> list[Section]:
    if file.archive.has("xl/workbook.bin"):
        raise Unreadable("it is a binary workbook (XLSB); save it as XLSX")
    package, budget = Package(file, "xl/workbook.xml"), file.budget
    main = package.main_part
    workbook, strings = _Workbook(), _Strings(budget)
    package.read(main, workbook)
    budget.take_pages(len(workbook.sheets), "sheets")
    formats = CellFormats(counts_from_1904=workbook.counts_from_1904)
    package.read_related("styles", formats)
    package.read_related("sharedStrings", strings)
    relations, sections = package.relations(main), []
    for name, id_ in workbook.sheets:
        relation = relations.get(id_)
        if relation and relation.kind == "worksheet" and package.archive.has(relation.target):
            sheet = _Sheet(strings.found, formats, budget)
            package.read(relation.target, sheet)
            sections.append(Section(f"sheet {name}", _table(sheet.rows, budget)))
    return sections


def _table(rows: list[_Row], budget: ReadBudget) -> str:
    """A table of the columns that have a value, with column letters and row numbers."""
    columns = {column: index for index, column in enumerate(sorted({one for row in rows for one in row.cells}), 1)}
    lines = [["", *map(column_letters, columns)]] if rows else []
    for row in rows:
        cells = [""] * (max(columns[column] for column in row.cells) + 1)
        budget.take_chars(len(cells))  # a few values far apart make long rows of empty cells
        cells[0] = str(row.number)
        for column, text in row.cells.items():
            cells[columns[column]] = text
        lines.append(cells)
    return "\n".join(table_lines(lines))
