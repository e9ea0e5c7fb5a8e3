"""EPUB to text: the chapters in their order."""

import posixpath
from urllib.parse import unquote

from cadenza.grounding.files.formats.package import Attributes, XmlReader, read_xml
from cadenza.grounding.files.formats.source import DAMAGED, SourceFile
from cadenza.grounding.files.formats.web_page import decode_html, html_text
from cadenza.grounding.files.records import Section, Unreadable

CONTAINER = "META-INF/container.xml"


class _Outline(XmlReader):
    """Where the package file is; then its items, and the order in which they are read."""

    def __init__(self) -> None:
        self.package = ""
        self.items: dict[str, str] = {}
        self.order: list[str] = []

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "rootfile":
            self.package = self.package or attributes.get("full-path", "")
        elif tag == "item":
            self.items[attributes.get("id", "")] = unquote(attributes.get("href", ""))
        elif tag == "itemref":
            self.order.append(attributes.get("idref", ""))


def is_epub(file: SourceFile) -> bool:
    return file.zip is not None and file.zip.has("mimetype") and file.zip.has(CONTAINER)


def read_epub(file: SourceFile) -> list[Section]:
    archive, budget = file.archive, file.budget
    if archive.has("META-INF/encryption.xml") and archive.has("META-INF/rights.xml"):
        raise Unreadable("it is encrypted; use a copy without copy protection")
    outline = _Outline()
    read_xml(archive.stream(CONTAINER), outline)
    if not archive.has(outline.package):
        raise Unreadable(DAMAGED)
    read_xml(archive.stream(outline.package), outline)
    budget.take_pages(len(outline.order), "chapters")
    folder = posixpath.dirname(outline.package)
    parts = [posixpath.normpath(posixpath.join(folder, outline.items.get(one, ""))) for one in outline.order]
    pages = (html_text(decode_html(archive.read(part)), budget) for part in parts if archive.has(part))
    return [Section(f"chapter {number}", text) for number, text in enumerate(filter(None, pages), 1)]
