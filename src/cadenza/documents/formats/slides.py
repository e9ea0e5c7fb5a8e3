"""PPTX to text: each slide with its text, tables, diagrams and notes, in the order of the show."""

from cadenza.documents.formats.limits import Allowance
from cadenza.documents.formats.office_text import OfficeText
from cadenza.documents.formats.package import Package, relation_id
from cadenza.documents.formats.xml_events import Attributes
from cadenza.documents.records import Section

MAIN_PART = "ppt/presentation.xml"


class _Order:
    """The slides, as ids of relationships, in their order."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "sldId":
            self.ids.append(relation_id(attributes))

    def end(self, tag: str) -> None:
        pass

    def text(self, data: str) -> None:
        pass


def read_slides(package: Package, allowance: Allowance) -> list[Section]:
    main = package.main_part(MAIN_PART)
    order = _Order()
    package.read(main, order)
    allowance.take_pages(len(order.ids), "slides")
    relations = package.relations(main)
    parts = [relations[id_].target for id_ in order.ids if id_ in relations]
    return [Section(f"slide {number}", _slide(package, part, allowance)) for number, part in enumerate(parts, 1)]


def _slide(package: Package, part: str, allowance: Allowance) -> str:
    texts = [_text(package, part, allowance)]
    texts += [_text(package, diagram, allowance) for diagram in package.related(part, "diagramData")]
    notes = [_text(package, notes, allowance) for notes in package.related(part, "notesSlide")]
    texts += [f"Notes: {text}" for text in notes if text]
    return "\n\n".join(filter(None, texts))


def _text(package: Package, part: str, allowance: Allowance) -> str:
    text = OfficeText(allowance)
    package.read(part, text)
    return text.result
