"""DOCX to text: the body, then footnotes, comments, and the headers and footers of its pages."""

from cadenza.parts.grounding.files.formats.office_text import Numbering, OfficeText, Styles
from cadenza.parts.grounding.files.formats.package import Attributes, Package, is_office_package, local
from cadenza.parts.grounding.files.formats.source import SourceFile
from cadenza.parts.grounding.files.records import Section

SEPARATORS = {"separator", "continuationSeparator", "continuationNotice"}


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
    package, budget = Package(file, "word/document.xml"), file.budget
    main, styles, numbering = package.main_part, Styles(), Numbering()
    package.read_related("styles", styles)
    package.read_related("numbering", numbering)
    body = OfficeText(budget, styles, numbering)
    package.read(main, body)
    sections = [Section("", body.result)]
    for kind in ("footnotes", "endnotes", "comments"):
        for part in package.related(main, kind):
            notes = _Notes(budget)
            package.read(part, notes)
            sections.append(Section(kind, notes.result))
    margins = OfficeText(budget)  # the headers and footers of the pages
    for kind in ("header", "footer"):
        package.read_related(kind, margins)
    return [*sections, Section("headers and footers", "\n".join(dict.fromkeys(margins.blocks)))]
