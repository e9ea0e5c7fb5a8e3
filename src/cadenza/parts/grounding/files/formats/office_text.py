"""The text of a Word part or a slide: paragraphs, lists, headings and tables, as Markdown.

Both formats have elements with the same names for these: p, r, t, tbl, tr, tc. Text that was deleted with changes
tracked, hidden text, field codes and the fallback copies of shapes are left out. Word shows numbers before the items of
lists, clauses and headings; a file has only the rules for them, so they are counted here.
"""

import re
from collections.abc import Callable

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.formats.package import Attributes, XmlReader, local
from cadenza.parts.grounding.files.formats.source import ReadBudget
from cadenza.parts.grounding.files.formats.text import ListItem, join_blocks, parse_count, table_lines

LEFT_OUT = frozenset({"Fallback", "moveFrom", "del", "tabs", "tabLst", "instrText", "delText"})
LITERAL = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}
SHAPES = frozenset({"sp", "grpSp", "graphicFrame", "pic", "cxnSp"})
HEADINGS_MAX = 6
DIGITS = frozenset("0123456789")
SPAN_MAX = 64
PARAGRAPH_COST = 6  # in characters, charged for each paragraph in addition to its text, because it takes memory
Start = Callable[[Attributes], None]
LEVELS = 9
TEXT_CHARS_MAX = 40
PLACE = re.compile("%([1-9])")
ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")),
    *((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
ROMAN_MAX = 3_999
LETTERS_MAX = 26 * 20
BULLET = "-"


class Level(Content, msgspec.Struct):
    """How one level of a list is numbered: `%1.%2` with the numbers of the first two levels."""

    form: str = "decimal"
    text: str = ""
    start: int = 1


class _List(Content, msgspec.Struct):
    """The levels of a list, and the current number of each."""

    levels: dict[int, Level] = {}
    reached: dict[int, int] = {}


class Numbering(XmlReader):
    """Reads the numbering rules, then counts the paragraphs of the document."""

    def __init__(self) -> None:
        self._kinds: dict[str, _List] = {}  # by the ids of their definitions
        self._lists: dict[str, _List] = {}  # by the ids that paragraphs have
        self._kind = _List()
        self._id = ""
        self._level = Level()

    def start(self, tag: str, attributes: Attributes) -> None:
        value = local(attributes, "val")
        if tag == "abstractNum":
            self._kind = self._kinds.setdefault(local(attributes, "abstractNumId"), _List())
        elif tag == "num":
            self._id = local(attributes, "numId")
        elif tag == "abstractNumId":
            self._kind = self._lists[self._id] = self._kinds.get(value, _List())
        elif tag == "lvlOverride":  # such a list restarts its numbers
            self._kind = self._lists[self._id] = _List(dict(self._kind.levels))
            self._select(local(attributes, "ilvl"))
        elif tag == "lvl":
            self._select(local(attributes, "ilvl"))
        elif tag in {"start", "startOverride"}:
            self._level.start = parse_count(value, 1)
        elif tag == "numFmt":
            self._level.form = value
        elif tag == "lvlText":
            self._level.text = value[:TEXT_CHARS_MAX]

    def next_number(self, id_: str, level: int) -> str:
        """The number or bullet of the next paragraph of a list."""
        one = self._lists.get(id_)
        if one is None or level not in one.levels:
            return BULLET
        own = one.levels[level]
        one.reached[level] = one.reached.get(level, own.start - 1) + 1
        for deeper in range(level + 1, LEVELS):
            one.reached.pop(deeper, None)
        if own.form in {"bullet", "none"}:
            return BULLET if own.form == "bullet" else own.text.strip()
        return PLACE.sub(lambda found: self._shown(one, int(found[1]) - 1, own), own.text).strip() or BULLET

    def _select(self, level: str) -> None:
        number = int(level) if level in set("012345678") else LEVELS - 1
        before = self._kind.levels.get(number, Level())
        self._level = self._kind.levels[number] = Level(before.form, before.text, before.start)

    def _shown(self, one: _List, level: int, own: Level) -> str:
        known = one.levels.get(level, own)
        return show_count(one.reached.get(level, known.start), known.form)


def show_count(count: int, form: str) -> str:
    if form in {"lowerLetter", "upperLetter"} and 0 < count <= LETTERS_MAX:
        letters = chr(ord("a") + (count - 1) % 26) * ((count - 1) // 26 + 1)
        return letters if form == "lowerLetter" else letters.upper()
    if form in {"lowerRoman", "upperRoman"} and 0 < count <= ROMAN_MAX:
        roman = ""
        for value, letters in ROMAN:
            roman += letters * (count // value)
            count %= value
        return roman if form == "lowerRoman" else roman.upper()
    return f"{count:02}" if form == "decimalZero" else str(count)


class Styles(XmlReader):
    """Reads the styles that are headings or list items. Their ids are in the author's language, their names are not."""

    def __init__(self) -> None:
        self.headings: dict[str, int] = {}  # the levels, by style
        self.lists: dict[str, int] = {}
        self.list_ids: dict[str, str] = {}
        self._style = ""

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "style":
            self._style = local(attributes, "styleId")
        elif tag == "name" and self._style:
            name = local(attributes, "val").lower()
            level = name.removeprefix("heading ")
            if name == "title":
                self.headings[self._style] = 1
            elif level != name and level in DIGITS:
                self.headings[self._style] = max(1, min(int(level), HEADINGS_MAX))
        elif tag in {"numPr", "ilvl"} and self._style:
            level = local(attributes, "val")
            self.lists[self._style] = int(level) if level in DIGITS else 0
        elif tag == "numId" and self._style:
            self.list_ids[self._style] = local(attributes, "val")

    def end(self, tag: str) -> None:
        if tag == "style":
            self._style = ""


class _Paragraph(Content, msgspec.Struct):
    """A paragraph that is being read."""

    heading: int = 0
    pieces: list[str] = []
    list_level: int | None = None
    list_id: str = ""

    def render(self, numbering: Numbering) -> str:
        text = "".join(self.pieces).strip()
        if not text:
            return ""
        number = numbering.next_number(self.list_id, self.list_level or 0) if self.list_id else BULLET
        if self.heading:
            numbered = text if number == BULLET else f"{number} {text}"
            return f"{'#' * min(self.heading, HEADINGS_MAX)} {' '.join(numbered.split())}"
        return text if self.list_level is None else ListItem(f"{'  ' * min(self.list_level, 8)}{number} {text}")


class _Table(Content, msgspec.Struct):
    """A table that is being read. A cell is its paragraphs, and how many columns it spans."""

    rows: list[list[str]] = []
    cell: list[str] = []
    span: int = 1

    def end_cell(self) -> None:
        if not self.rows:
            self.rows.append([])
        self.rows[-1] += [" / ".join(self.cell), *[""] * (self.span - 1)]
        self.cell, self.span = [], 1


class OfficeText(XmlReader):
    """Collects the text of one part."""

    def __init__(self, budget: ReadBudget, styles: Styles | None = None, numbering: Numbering | None = None) -> None:
        self.blocks: list[str] = []
        self._budget = budget
        self._styles = styles or Styles()
        self._paragraphs: list[_Paragraph] = []  # more than one: a text box inside a paragraph
        self._tables: list[_Table] = []  # more than one: a table inside a cell
        self._left_out = 0  # depth inside an element that is left out
        self._numbering = numbering or Numbering()
        self._is_text = False
        self._is_hidden = False
        self._next_heading = 0
        self._starts: dict[str, Start] = {
            "p": lambda _: self._start_paragraph(),
            "vanish": self._vanish,
            "pStyle": self._style,
            "outlineLvl": self._outline,
            "numPr": lambda _: self._list_item(0),
            "ilvl": lambda attributes: self._list_item(parse_count(local(attributes, "val"))),
            "numId": self._list_id,
            "ph": self._placeholder,
            "tbl": lambda _: self._tables.append(_Table()),
            "tr": lambda _: self._tables[-1].rows.append([]) if self._tables else None,
            "gridSpan": self._span,
            "footnoteReference": lambda attributes: self._add(f"[^{local(attributes, 'id')[:8]}]"),
            "endnoteReference": lambda attributes: self._add(f"[^e{local(attributes, 'id')[:8]}]"),
            "docPr": self._picture,
        }

    @property
    def result(self) -> str:
        return join_blocks(self.blocks)

    def start(self, tag: str, attributes: Attributes) -> None:
        if self._left_out or tag in LEFT_OUT:
            self._left_out += 1
        elif tag == "t":
            self._is_text = True
        elif tag == "r":
            self._is_hidden = False
        elif begin := self._starts.get(tag):
            begin(attributes)
        elif tag in LITERAL:
            self._add(LITERAL[tag])
        elif tag == "fld" and attributes.get("type") == "slidenum":
            self._left_out += 1

    def end(self, tag: str) -> None:
        if self._left_out:
            self._left_out -= 1
        elif tag == "t":
            self._is_text = False
        elif tag == "p":
            self._end_paragraph()
        elif tag == "tc" and self._tables:
            self._tables[-1].end_cell()
        elif tag == "tbl" and self._tables:
            self._end_table(self._tables.pop())
        elif tag in SHAPES:
            self._end_shape()

    def text(self, data: str) -> None:
        if self._is_text and not self._left_out and not self._is_hidden:
            self._add(data)

    def _end_shape(self) -> None:
        self._next_heading = 0

    def _vanish(self, attributes: Attributes) -> None:
        """Whether a run is hidden. A hidden paragraph mark comes before the runs and has no effect."""
        self._is_hidden = local(attributes, "val") not in {"0", "false"}

    def _add(self, text: str) -> None:
        if self._paragraphs:
            self._budget.take_chars(len(text))
            self._paragraphs[-1].pieces.append(text)

    def _start_paragraph(self) -> None:
        self._budget.take_chars(PARAGRAPH_COST)
        self._paragraphs.append(_Paragraph(self._next_heading))

    def _end_paragraph(self) -> None:
        if self._paragraphs and (block := self._paragraphs.pop().render(self._numbering)):
            (self._tables[-1].cell if self._tables else self.blocks).append(block)

    def _end_table(self, table: _Table) -> None:
        if self._tables:
            self._tables[-1].cell += [" / ".join(filter(None, row)) for row in table.rows]
        elif lines := list(table_lines(table.rows)):
            self.blocks.append("\n".join(lines))

    def _style(self, attributes: Attributes) -> None:
        if self._paragraphs:
            style, paragraph = local(attributes, "val"), self._paragraphs[-1]
            paragraph.heading = self._styles.headings.get(style, 0)
            paragraph.list_level = self._styles.lists.get(style, paragraph.list_level)
            paragraph.list_id = self._styles.list_ids.get(style, "")

    def _outline(self, attributes: Attributes) -> None:
        level = parse_count(local(attributes, "val"))
        if self._paragraphs and level < HEADINGS_MAX:
            self._paragraphs[-1].heading = level + 1

    def _list_item(self, level: int) -> None:
        if self._paragraphs:
            self._paragraphs[-1].list_level = level

    def _list_id(self, attributes: Attributes) -> None:
        """The id 0 removes a paragraph from the list of its style."""
        if self._paragraphs:
            paragraph, id_ = self._paragraphs[-1], local(attributes, "val")
            paragraph.list_id = "" if id_ == "0" else id_
            paragraph.list_level = None if id_ == "0" else paragraph.list_level

    def _placeholder(self, attributes: Attributes) -> None:
        self._next_heading = 1 if attributes.get("type") in {"title", "ctrTitle"} else 0

    def _span(self, attributes: Attributes) -> None:
        if self._tables:
            self._tables[-1].span = max(1, min(parse_count(local(attributes, "val")), SPAN_MAX))

    def _picture(self, attributes: Attributes) -> None:
        if described := " ".join(attributes.get("descr", "").split()):
            self._add(f"[picture: {described}]")
