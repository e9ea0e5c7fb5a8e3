"""PPTX to text: each slide with its text, tables, diagrams and notes, in the order of the show.

A file has the shapes of a slide in the order in which they were drawn. They are read from top to
bottom, after the title.
"""

from enum import IntEnum

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.formats.office_text import SHAPES, OfficeText
from cadenza.parts.grounding.files.formats.package import Attributes, Package, XmlReader, is_office_package, relation_id
from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.formats.text import join_blocks, parse_count
from cadenza.parts.grounding.files.records import Section

GROUPS_MAX = 20  # nested groups; deeper ones are treated as part of the deepest allowed one
LINE_EMU = 228_600  # a quarter of an inch: shapes whose tops are closer than this are read from left to right
MARGINS = frozenset({"ftr", "dt", "sldNum", "hdr"})


class Place(IntEnum):
    """The group of a shape in the reading order."""

    TITLE = 0
    LAYOUT = 1  # positioned by the layout of the slide
    POSITION = 2
    MARGIN = 3


class _Shape(Content, msgspec.Struct):
    """A shape, or a group of shapes."""

    place: Place = Place.LAYOUT
    top: int = 0
    left: int = 0
    blocks: list[str] = []
    inner: "list[_Shape]" = []

    def key(self) -> tuple[int, int, int]:
        return (self.place, self.top, self.left)

    def all_blocks(self) -> list[str]:
        """Its blocks with those of its inner shapes, in reading order. Call it once all of them have ended."""
        line_top = 0
        for shape in sorted(self.inner, key=_Shape.key):
            line_top = shape.top if shape.top - line_top >= LINE_EMU or shape.top < line_top else line_top
            shape.top = line_top
        for shape in sorted(self.inner, key=_Shape.key):
            self.blocks += shape.blocks
        self.inner = []
        return self.blocks


class _Slide(OfficeText):
    """Takes the events of a slide. Outside of shapes there is no text."""

    def __init__(self, budget: ReadBudget) -> None:
        super().__init__(budget)
        self.is_hidden = False
        self._shapes = [_Shape()]
        self._too_deep = 0
        self.blocks = self._shapes[0].blocks
        self._starts |= {"sld": self._slide, "ph": self._placeholder, "off": self._position, "pPr": self._level}
        self._starts |= dict.fromkeys(SHAPES, self._start_shape)

    @property
    def result(self) -> str:
        return join_blocks(self._shapes[0].all_blocks())

    def _start_shape(self, attributes: Attributes) -> None:  # noqa: ARG002 every start event has them
        if len(self._shapes) > GROUPS_MAX:
            self._too_deep += 1
            return
        shape = _Shape()
        self._shapes[-1].inner.append(shape)
        self._shapes.append(shape)
        self.blocks = shape.blocks

    def _end_shape(self) -> None:
        super()._end_shape()
        if self._too_deep:
            self._too_deep -= 1
        elif len(self._shapes) > 1:
            self._shapes.pop().all_blocks()
            self.blocks = self._shapes[-1].blocks

    def _slide(self, attributes: Attributes) -> None:
        self.is_hidden = attributes.get("show") in {"0", "false"}

    def _placeholder(self, attributes: Attributes) -> None:
        super()._placeholder(attributes)
        shape, kind = self._shapes[-1], attributes.get("type", "")
        if kind in {"title", "ctrTitle"}:
            shape.place = Place.TITLE
        elif kind in MARGINS:
            shape.place = Place.MARGIN

    def _position(self, attributes: Attributes) -> None:
        shape = self._shapes[-1]
        if shape.place is Place.LAYOUT and not self._too_deep:
            shape.place = Place.POSITION
            shape.top, shape.left = _emu(attributes.get("y", "")), _emu(attributes.get("x", ""))

    def _level(self, attributes: Attributes) -> None:
        if attributes.get("lvl", "0") != "0":
            self._list_item(parse_count(attributes["lvl"]))


class _Order(XmlReader):
    """The relationship ids of the slides, in their order."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "sldId":
            self.ids.append(relation_id(attributes))


def is_slides(file: SourceFile) -> bool:
    return is_office_package(file, "ppt/", "presentation.xml")


def read_slides(file: SourceFile) -> list[Section]:
    package, budget, order = Package(file, "ppt/presentation.xml"), file.budget, _Order()
    package.read(package.main_part, order)
    budget.take_pages(len(order.ids), "slides")
    relations = package.relations(package.main_part)
    parts = [relations[id_].target for id_ in order.ids if id_ in relations]
    return [_slide(package, part, number, budget) for number, part in enumerate(parts, 1)]


def _slide(package: Package, part: str, number: int, budget: ReadBudget) -> Section:
    slide = _Slide(budget)
    package.read(part, slide)
    texts = [slide.result]
    texts += [_text(package, diagram, budget) for diagram in package.related(part, "diagramData")]
    notes = [_text(package, notes, budget) for notes in package.related(part, "notesSlide")]
    texts += [f"Notes: {text}" for text in notes if text]
    return Section(f"slide {number}{' (hidden)' * slide.is_hidden}", "\n\n".join(filter(None, texts)))


def _emu(text: str) -> int:
    """A position, which is negative outside of the slide."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 15 else 0


def _text(package: Package, part: str, budget: ReadBudget) -> str:
    text = OfficeText(budget)
    package.read(part, text)
    return text.result
