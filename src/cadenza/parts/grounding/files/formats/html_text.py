"""A tree of HTML to text: paragraphs, headings, lists and tables as Markdown."""

import re
from collections.abc import Callable, Iterator

from cadenza.parts.grounding.files.formats.html_tree import Element
from cadenza.parts.grounding.files.formats.text import ListItem, join_blocks, parse_count, table_lines
from cadenza.parts.grounding.word_set import word_set

HIDDEN = word_set("""
    audio button canvas dialog embed head iframe input link map math meta noscript object option param script select
    source style svg template textarea title track video
    """)
LINE = frozenset({"br", "li", "dt", "dd", "tr", "option", "summary", "figcaption", "caption", "label"})
BLOCK = word_set("""
    address article aside blockquote body details div dl fieldset figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr
    html legend main nav ol p pre section table tbody td tfoot th thead ul
    """)
HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
CELL_CHARS_MAX = 400  # a table with longer cells is a layout table
CELL_BLOCKS = frozenset({"table", "article", "section", "h1", "h2", "h3"})
SPAN_MAX = 20
LINK_CHARS_MAX = 300
LINK_STARTS = ("http://", "https://", "mailto:")
TARGET = re.compile(r"\]\((?:https?|mailto):[^\s)]*+\)")


class HtmlText:
    """Collects the text of the elements that `wants` accepts. Hidden ones are always left out."""

    def __init__(self, wants: Callable[[Element], bool] = lambda _: True) -> None:
        self._wants = wants
        self._blocks: list[str] = []
        self._line: list[str] = []  # of the block that is being collected
        self._prefix = ""

    def collect(self, root: Element) -> str:
        self._element(root)
        self._end_block()
        return join_blocks(self._blocks)

    def _element(self, element: Element) -> None:
        tag = element.tag
        if tag in HIDDEN or not self._wants(element):
            return
        if tag == "br":
            self._line.append("\n")
        elif tag == "pre":
            self._end_block()
            self._blocks.append("```\n" + "".join(texts(element)).strip("\n") + "\n```")
        elif tag == "table" and (rows := data_rows(element, self._cell)):
            self._end_block()
            self._blocks += filter(None, [self._cell(caption) for caption in parts_of(element, "caption")])
            self._blocks.append("\n".join(table_lines(rows)))
        elif tag == "li":
            self._item(element)
        else:
            self._plain(element)

    def _cell(self, element: Element) -> str:
        return type(self)().collect(element)

    def _plain(self, element: Element) -> None:
        is_block = element.tag in BLOCK
        if is_block:
            self._end_block()
            self._prefix = HEADINGS.get(element.tag, self._prefix)
        elif element.tag in LINE:
            self._line.append("\n")
        for child in element.children:
            self._child(child)
        if is_block:
            self._end_block()
        elif element.tag in LINE:
            self._line.append("\n")

    def _child(self, child: Element | str) -> None:
        if isinstance(child, str):
            self._text(child)
        else:
            self._element(child)

    def _text(self, text: str) -> None:
        collapsed = " ".join(text.split())
        if not collapsed:
            self._line.append(" ")
            return
        self._line.append((" " if text[0].isspace() else "") + collapsed + (" " if text[-1].isspace() else ""))

    def _item(self, element: Element) -> None:
        self._end_block()
        before = len(self._blocks)
        for child in element.children:
            self._child(child)
        self._end_block()
        own = self._blocks[before:]
        del self._blocks[before:]
        if own:
            self._blocks.append(ListItem("- " + "\n".join(own).replace("\n", "\n  ")))

    def _end_block(self) -> None:
        lines = (" ".join(line.split()) for line in "".join(self._line).split("\n"))
        if text := "\n".join(filter(None, lines)):
            self._blocks.append(self._prefix + (text.replace("\n", " ") if self._prefix else text))
        self._line, self._prefix = [], ""


class ShownText(HtmlText):
    """Everything that a page shows, with the targets of its links."""

    def __init__(self) -> None:
        super().__init__(lambda element: not element.is_hidden())
        self._is_in_link = False

    def _plain(self, element: Element) -> None:
        target = "" if element.tag != "a" or self._is_in_link else link_target(element)
        if not target:
            super()._plain(element)
            return
        blocks, start = len(self._blocks), len(self._line)
        self._is_in_link = True
        super()._plain(element)
        self._is_in_link = False
        if len(self._blocks) == blocks and start <= len(self._line):
            self._line[start:] = [linked("".join(self._line[start:]), target)]


def link_target(element: Element) -> str:
    """The address of a link that leads outside of the page, unless it is too long to be shown."""
    target = "%20".join(element.attributes().get("href", "").split())
    return target if len(target) <= LINK_CHARS_MAX and target.lower().startswith(LINK_STARTS) else ""


def linked(text: str, target: str) -> str:
    shown = " ".join(text.split())
    if not shown or shown.rstrip("/") in {target.rstrip("/"), target.partition(":")[2].lstrip("/").rstrip("/")}:
        return text
    before, after = text[0].isspace(), text[-1].isspace()
    return f"{' ' * before}[{shown}]({target}){' ' * after}"


def texts(element: Element) -> Iterator[str]:
    """All visible texts of an element, as they are written."""
    inside = [iter(element.children)]
    while inside:
        child = next(inside[-1], None)
        if child is None:
            inside.pop()
        elif isinstance(child, str):
            yield child
        elif child.tag == "br":
            yield "\n"
        elif child.tag not in HIDDEN and not child.is_hidden():
            inside.append(iter(child.children))


def data_rows(table: Element, cell_text: Callable[[Element], str]) -> list[list[str]]:
    """The cells of a data table; none for a layout table."""
    rows: list[list[str]] = []
    for row in _rows(table):
        cells: list[str] = []
        for cell in row.children:
            if not isinstance(cell, Element) or cell.tag not in {"td", "th"}:
                continue
            if any(isinstance(child, Element) and child.tag in CELL_BLOCKS for child in cell.children):
                return []
            text = cell_text(cell).replace("\n", " ")
            if len(text) > CELL_CHARS_MAX and len(TARGET.sub("", text)) > CELL_CHARS_MAX:
                return []
            cells += [text, *[""] * (_span(cell) - 1)]
        rows.append(cells)
    return rows if max(map(len, rows), default=0) > 1 else []


def parts_of(element: Element, tag: str) -> Iterator[Element]:
    return (child for child in element.children if isinstance(child, Element) and child.tag == tag)


def _span(cell: Element) -> int:
    """How many columns a cell takes."""
    said = cell.attributes().get("colspan", "") if cell.says("colspan") else ""
    return max(1, min(parse_count(said), SPAN_MAX))


def _rows(element: Element) -> Iterator[Element]:
    for child in element.children:
        if isinstance(child, Element) and not child.is_hidden():
            if child.tag == "tr":
                yield child
            elif child.tag in {"thead", "tbody", "tfoot"}:
                yield from _rows(child)
