"""OpenDocument (ODT, ODS, ODP) to text: paragraphs, headings and tables; sheets and slides keep their names."""

from cadenza.grounding.files.formats.package import Attributes, XmlReader, local, read_xml
from cadenza.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.grounding.files.formats.text import parse_count, table_lines
from cadenza.grounding.files.records import IS_LOCKED, Section, Unreadable

LEFT_OUT = frozenset({"tracked-changes", "annotation", "forms", "sequence-decls", "automatic-styles", "note-citation"})
BLANKS = {"tab": "\t", "line-break": "\n", "s": " "}
REPEATED_MAX = 64
MANIFEST = "META-INF/manifest.xml"


class _Content(XmlReader):
    """Collects the text of content.xml."""

    def __init__(self, budget: ReadBudget) -> None:
        self.sections: list[Section] = []
        self._budget = budget
        self._label = ""
        self._blocks: list[str] = []
        self._paragraphs: list[list[str]] = []
        self._rows: list[list[str]] = []
        self._cell: list[str] = []
        self._repeated = 1
        self._tables = 0
        self._slides = 0
        self._left_out = 0

    def start(self, tag: str, attributes: Attributes) -> None:
        if self._left_out or tag in LEFT_OUT:
            self._left_out += 1
        elif tag in {"p", "h"}:
            level = local(attributes, "outline-level")
            self._paragraphs.append(
                ["#" * min(int(level), 6) + " "] if tag == "h" and level in set("123456789") else []
            )
        elif tag in BLANKS:
            self.text(BLANKS[tag])
        elif tag == "table":
            self._start_table(local(attributes, "name"))
        elif tag == "table-row" and self._tables == 1:
            self._rows.append([])
        elif tag in {"table-cell", "covered-table-cell"} and self._tables == 1:
            self._repeated = min(parse_count(local(attributes, "number-columns-repeated"), 1), REPEATED_MAX)
            self._cell = []
        elif tag == "page":
            self.end_section()
            self._slides += 1
            self._label = f"slide {self._slides}"

    def end(self, tag: str) -> None:
        if self._left_out:
            self._left_out -= 1
        elif tag in {"p", "h"} and self._paragraphs:
            self._end_paragraph("".join(self._paragraphs.pop()).strip())
        elif tag in {"table-cell", "covered-table-cell"} and self._tables == 1:
            self._end_cell()
        elif tag == "table":
            self._end_table()
        elif tag == "spreadsheet":
            self.end_section()

    def text(self, data: str) -> None:
        if self._paragraphs and not self._left_out:
            self._budget.take_chars(len(data))
            self._paragraphs[-1].append(data)

    def end_section(self) -> None:
        if self._blocks:
            if self._label:
                self._budget.take_pages(1, f"{self._label.split()[0]}s")
            self.sections.append(Section(self._label, "\n\n".join(self._blocks)))
        self._blocks = []

    def _end_paragraph(self, text: str) -> None:
        if text:
            (self._cell if self._tables else self._blocks).append(text)

    def _start_table(self, name: str) -> None:  # noqa: ARG002 for sheets
        self._tables += 1
        if self._tables == 1:
            self._rows = []

    def _end_cell(self) -> None:
        if self._rows:
            text = " / ".join(self._cell)
            self._budget.take_chars(self._repeated * (len(text) + 1))
            self._rows[-1] += [text] * self._repeated
        self._cell = []

    def _end_table(self) -> None:
        self._tables -= 1
        if self._tables == 0:
            for row in self._rows:
                while row and not row[-1]:
                    row.pop()
            self._blocks += filter(None, ["\n".join(table_lines(self._rows))])
            self._rows = []


class _Sheets(_Content):
    """The content of a spreadsheet: each table is a section."""

    def _start_table(self, name: str) -> None:
        if self._tables == 0:
            self._label = f"sheet {' '.join(name.split())[:64]}"
        super()._start_table(name)

    def _end_table(self) -> None:
        super()._end_table()
        if self._tables == 0:
            self.end_section()


def is_open_document(file: SourceFile) -> bool:
    return file.zip is not None and file.zip.has("mimetype") and file.zip.has("content.xml")


def read_open_document(file: SourceFile) -> list[Section]:
    archive, budget = file.archive, file.budget
    if archive.has(MANIFEST) and b"encryption-data" in archive.read(MANIFEST):
        raise Unreadable(IS_LOCKED)
    is_sheets = b"spreadsheet" in archive.read("mimetype")[:100]
    content = _Sheets(budget) if is_sheets else _Content(budget)
    read_xml(archive.stream("content.xml"), content)
    content.end_section()
    return content.sections
