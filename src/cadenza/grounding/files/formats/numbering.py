"""The numbers that Word shows before the items of lists, clauses and headings. A file has only the rules for them."""

import re

import msgspec

from cadenza.grounding.files.formats.xml_events import Attributes, local

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


class Level(msgspec.Struct):
    """How one level of a list is numbered: `%1.%2` with the numbers of the first two levels."""

    form: str = "decimal"
    text: str = ""
    start: int = 1


class _List(msgspec.Struct):
    """The levels of a list, and which numbers it has reached."""

    levels: dict[int, Level] = {}
    reached: dict[int, int] = {}


class Numbering:
    """Takes the events of the part with the rules, then counts the paragraphs of the document."""

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
        elif tag == "lvlOverride":  # such a list begins anew
            self._kind = self._lists[self._id] = _List(dict(self._kind.levels))
            self._select(local(attributes, "ilvl"))
        elif tag == "lvl":
            self._select(local(attributes, "ilvl"))
        elif tag in {"start", "startOverride"}:
            self._level.start = int(value) if value.isascii() and value.isdigit() and len(value) < 7 else 1
        elif tag == "numFmt":
            self._level.form = value
        elif tag == "lvlText":
            self._level.text = value[:TEXT_CHARS_MAX]

    def end(self, tag: str) -> None:
        pass

    def text(self, data: str) -> None:
        pass

    def next_number(self, id_: str, level: int) -> str:
        """What stands before the next paragraph of a list: a number, or `-`."""
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
