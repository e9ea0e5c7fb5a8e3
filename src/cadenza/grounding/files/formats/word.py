"""DOCX to text: the body, then footnotes, comments, and the headers and footers of its pages."""

from cadenza.grounding.files.formats.office_text import HEADINGS_MAX, Numbering, OfficeText, Styles
from cadenza.grounding.files.formats.package import Attributes, Package, XmlReader, is_office_package, local
from cadenza.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.grounding.files.records import Section

MAIN_PART = "word/document.xml"
NOTES = (("footnotes", "footnotes"), ("endnotes", "endnotes"), ("comments", "comments"))
DIGITS = frozenset("0123456789")
SEPARATORS = {"separator", "continuationSeparator", "continuationNotice"}


class _Styles(Styles, XmlReader):
    """Reads the styles. Their ids are in the language of the author, their names are not."""

    def __init__(self) -> None:
        super().__init__()
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


class _Notes(OfficeText):
    """Footnotes, endnotes or comments: each begins with its number, or with the name of its author."""

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag in {"footnote", "endnote"} and local(attributes, "type") not in SEPARATORS:
            mark = "e" if tag == "endnote" else ""
            self.blocks.append(f"[^{mark}{local(attributes, 'id')[:8]}]:")
        elif tag == "comment":
            self.blocks.append(f"{' '.join(local(attributes, 'author').split()) or 'Comment'}:")
        super().start(tag, attributes)

    @property
    def result(self) -> str:
        return "\n".join(self.blocks).replace(":\n", ": ")


def is_word(file: SourceFile) -> bool:
    return is_office_package(file, "word/", "document.xml")


def read_word(file: SourceFile) -> list[Section]:
    package, budget = Package(file, MAIN_PART), file.budget
    main = package.main_part
    styles = _Styles()
    for part in package.related(main, "styles"):
        package.read(part, styles)
    numbering = Numbering()
    for part in package.related(main, "numbering"):
        package.read(part, numbering)
    body = OfficeText(budget, styles, numbering)
    package.read(main, body)
    sections = [Section("", body.result)]
    for kind, label in NOTES:
        for part in package.related(main, kind):
            notes = _Notes(budget)
            package.read(part, notes)
            sections.append(Section(label, notes.result))
    return [*sections, Section("headers and footers", _margins(package, main, budget))]


def _margins(package: Package, main: str, budget: ReadBudget) -> str:
    """The headers and footers of the pages, each line once."""
    found: dict[str, None] = {}
    for kind in ("header", "footer"):
        for part in package.related(main, kind):
            text = OfficeText(budget)
            package.read(part, text)
            found |= dict.fromkeys(text.blocks)
    return "\n".join(found)
