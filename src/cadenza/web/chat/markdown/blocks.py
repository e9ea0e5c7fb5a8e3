"""Splits Markdown that arrives in pieces into blocks, so that each can be rendered alone, once, while the rest arrives.

A block ends only where every container of the document is closed, so the blocks rendered one by one look like the whole
rendered at once. What is not sure to be such a place does not end a block. The cost is linear in the text.

    open block  a line that ends it, and belongs to it      a line that ends it, and begins the next
    none        a heading is a block of its own             -
    plain       an empty line                               a fence or a heading
    list        -                                           what no item contains: a fence, a heading, a rule, a quote;
                                                            after an empty line, any text outside of its items
    code        -                                           a line without its indent
    fence       the closing fence                           -
    unsure      -                                           -

A list is in doubt if a line may or may not have begun or ended it. If an indented fence follows, the block is unsure. A
block that grows too large ends anywhere, and is shown as plain text.
"""

import re
from enum import Enum, auto

import msgspec

BLOCK_CHARS_MAX = 16 * 1024
FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
CLOSES_LIST = re.compile(r" {0,3}(?:#{1,6}(?:[ \t]|$)|>|\*{3,}[ \t]*$|_{3,}[ \t]*$)")
LIST_ITEM = re.compile(r"( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)")
INTERRUPTING_ITEM = re.compile(r" {0,3}(?:[-*+]|1[.)])[ \t]+\S")  # it may follow the text of a paragraph
SPACE = " \t\r\n"
INDENTED = re.compile(r" {0,3}\t| {4}")


class Block(msgspec.Struct, frozen=True):
    """A complete block and the empty lines after it. One that is too large to render is shown as it is."""

    source: str
    is_plain: bool = False


class Kind(Enum):
    """What the open block is. See the module's table."""

    NONE = auto()
    PLAIN = auto()
    LIST = auto()
    CODE = auto()
    FENCE = auto()
    UNSURE = auto()


class BlockSplitter:
    """Feed it text; it returns the blocks that are complete."""

    def __init__(self, block_chars_max: int = BLOCK_CHARS_MAX) -> None:
        self._block_chars_max = block_chars_max
        self._kind = Kind.NONE
        self._lines: list[str] = []  # of the open block
        self._line: list[str] = []  # the parts of the line that has not ended
        self._open_chars = 0  # of both
        self._is_cut = False  # a part of the open block is a block already, because it was too large
        self._after_blank = False
        self._is_doubtful = False  # whether the open block is a list still
        self._fence = ""  # that opened the block
        self._item_indent = 0  # of the text of the list's last item

    def feed(self, text: str) -> list[Block]:
        blocks: list[Block] = []
        first, *rest = text.split("\n")
        self._keep(first, blocks)
        for part in rest:
            line = "".join((*self._line, "\n"))
            self._line = []
            self._open_chars += 1
            self._take(line, blocks)
            self._keep(part, blocks)
        return blocks

    def end(self) -> list[Block]:
        """The text has ended: what is left is complete."""
        blocks: list[Block] = []
        if self._line:
            self._take("".join(self._line), blocks)
            self._line = []
        self._emit(blocks)
        return blocks

    def _keep(self, part: str, blocks: list[Block]) -> None:
        if not part:
            return
        self._line.append(part)
        self._open_chars += len(part)
        if self._open_chars > self._block_chars_max:
            self._cut(blocks)

    def _cut(self, blocks: list[Block]) -> None:
        source = "".join((*self._lines, *self._line))
        blocks.append(Block(source, is_plain=True))
        self._lines, self._line, self._open_chars = [], [], 0
        self._is_cut = True
        if self._kind is Kind.NONE:
            self._kind = Kind.PLAIN

    def _take(self, line: str, blocks: list[Block]) -> None:
        """A whole line has arrived, with its end."""
        if self._kind is Kind.FENCE:
            self._lines.append(line)
            if self._is_closing(line):
                self._emit(blocks)
        elif not line.strip(SPACE):
            self._take_blank(line, blocks)
        else:
            if self._ends_before(line):
                self._emit(blocks, line)
            self._add(line, blocks)

    def _take_blank(self, line: str, blocks: list[Block]) -> None:
        is_code = bool(self._lines) and INDENTED.match(self._lines[-1]) is not None
        self._lines.append(line)
        if self._kind is Kind.PLAIN and is_code:
            self._kind = Kind.CODE  # after a rule, say; it may go on after the empty line
        elif self._kind is Kind.PLAIN:
            self._emit(blocks)
        self._after_blank = True

    def _ends_before(self, line: str) -> bool:
        match self._kind:
            case Kind.PLAIN:
                return _fence_of(line) is not None or HEADING.match(line) is not None
            case Kind.LIST:
                if self._is_in_item(line):
                    return False
                is_outside = self._after_blank and not LIST_ITEM.match(line)
                return is_outside or _fence_of(line) is not None or CLOSES_LIST.match(line) is not None
            case Kind.CODE:
                return not INDENTED.match(line)
            case _:
                return False

    def _add(self, line: str, blocks: list[Block]) -> None:
        """Add a line that has text to the open block, or begin one with it."""
        self._lines.append(line)
        if self._kind is Kind.NONE:
            self._kind = Kind.PLAIN
            if INDENTED.match(line):
                self._kind = Kind.CODE
            elif HEADING.match(line):
                self._emit(blocks)
                return
            elif fence := _fence_of(line):
                self._kind, self._fence = Kind.FENCE, fence
                return
        if self._kind in (Kind.PLAIN, Kind.LIST):
            self._note_list(line)
        self._after_blank = False

    def _is_in_item(self, line: str) -> bool:
        indent = len(line) - len(line.lstrip(" "))
        return indent >= self._item_indent or line[indent] == "\t"

    def _note_list(self, line: str) -> None:
        """Notice whether a line begins or continues a list."""
        item = LIST_ITEM.match(line)
        if self._kind is Kind.LIST:
            if self._is_in_item(line):
                if self._is_doubtful and _fence_of(line):
                    self._kind = Kind.UNSURE
                return
            self._is_doubtful = self._is_doubtful or item is None
        elif item and len(self._lines) > 1:
            self._is_doubtful = not INTERRUPTING_ITEM.match(line)
        if item:
            self._note_item(item)

    def _note_item(self, item: re.Match[str]) -> None:
        indent, marker, space = item.groups()
        if not item.string[item.end() :].strip(SPACE):
            self._is_doubtful = True  # an empty item, which ends with the next empty line
        self._kind = Kind.LIST
        width = len(space) if 0 < len(space) < 5 and "\t" not in space else 1
        self._item_indent = len(indent) + len(marker) + width

    def _is_closing(self, line: str) -> bool:
        text = line.strip(SPACE)
        is_indented = INDENTED.match(line) is not None
        return not is_indented and len(text) >= len(self._fence) and not text.strip(self._fence[0])

    def _emit(self, blocks: list[Block], next_line: str = "") -> None:
        """The open block is complete; `next_line` is not part of it."""
        if self._lines:
            blocks.append(Block("".join(self._lines), self._is_cut))
        self._lines = []
        self._open_chars = len(next_line)
        self._kind, self._is_cut, self._after_blank, self._is_doubtful = Kind.NONE, False, False, False


def _fence_of(line: str) -> str | None:
    """The characters of an opening fence."""
    found = FENCE.match(line)
    return found[2] if found else None
