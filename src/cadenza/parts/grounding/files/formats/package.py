"""XML as events, and Office packages: ZIP archives of XML parts with relationships between them.

There is no tree, so depth and size cost no memory. A document type declaration is refused, so that there are no
entities to expand or to fetch. Names come without the prefix of their namespace: in the formats that are read here, no
two elements differ by it alone.
"""

import posixpath
from collections.abc import Iterable
from xml.parsers import expat

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.files.formats.source import DAMAGED, SourceFile
from cadenza.parts.grounding.files.records import Unreadable

Attributes = dict[str, str]


class XmlReader:
    """Takes the events of an XML document. A subclass overrides those that it needs."""

    def start(self, tag: str, attributes: Attributes) -> None:
        pass

    def end(self, tag: str) -> None:
        pass

    def text(self, data: str) -> None:
        pass


def read_xml(pieces: Iterable[bytes], reader: XmlReader) -> None:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = lambda tag, attributes: reader.start(tag.rpartition(":")[2], attributes)
    parser.EndElementHandler = lambda tag: reader.end(tag.rpartition(":")[2])
    parser.CharacterDataHandler = reader.text
    try:
        for piece in pieces:
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError):  # the last two for an unknown encoding
        raise Unreadable("it is damaged: its XML cannot be parsed") from None


def local(attributes: Attributes, name: str) -> str:
    """An attribute by its name without the prefix."""
    if name in attributes:
        return attributes[name]
    return next((value for key, value in attributes.items() if key.rpartition(":")[2] == name), "")


def _refuse_doctype(*_: object) -> None:
    raise Unreadable("it has a document type declaration, which is not allowed in such a file")


class Relation(Content, msgspec.Struct, frozen=True):
    """A relationship: its kind, which is the last word of its address, and the part that it leads to."""

    kind: str
    target: str


class _Relations(XmlReader):
    """Reads one part of relationships. Those to the outside are left out: nothing is ever fetched."""

    def __init__(self, folder: str) -> None:
        self.found: dict[str, Relation] = {}
        self._folder = folder

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "Relationship" and attributes.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", self._folder, attributes.get("Target", "")))
            kind = attributes.get("Type", "").rpartition("/")[2]
            self.found[attributes.get("Id", "")] = Relation(kind, target.lstrip("/"))


class Package:
    """The parts of an Office package. `usual_main_part` is the customary name of the document itself."""

    def __init__(self, file: SourceFile, usual_main_part: str) -> None:
        self.archive = file.archive
        parts = [*self.related("", "officeDocument"), usual_main_part]
        found = next((part for part in parts if self.archive.has(part)), None)
        if found is None:
            raise Unreadable(DAMAGED)
        self.main_part = found

    def relations(self, part: str) -> dict[str, Relation]:
        """The relationships of a part, by their ids; those of the package itself for the empty name."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        relations = _Relations(folder)
        if self.archive.has(path):
            self.read(path, relations)
        return relations.found

    def related(self, part: str, kind: str) -> list[str]:
        """The parts that a part leads to by relationships of one kind."""
        found = (one.target for one in self.relations(part).values() if one.kind == kind)
        return [target for target in found if self.archive.has(target)]

    def read(self, part: str, reader: XmlReader) -> None:
        read_xml(self.archive.stream(part), reader)

    def read_related(self, kind: str, reader: XmlReader) -> None:
        """Read the parts that the document itself leads to by relationships of one kind."""
        for part in self.related(self.main_part, kind):
            self.read(part, reader)


def is_office_package(file: SourceFile, *part_names: str) -> bool:
    """Whether it is a package that has a part whose name begins with one of these."""
    archive = file.zip
    if archive is None or not (archive.has("[Content_Types].xml") or archive.has("_rels/.rels")):
        return False
    return archive.has_any(part_names)


def relation_id(attributes: Attributes) -> str:
    """The id of a relationship, as an element refers to it: `r:id`, with whatever prefix."""
    prefixed = (value for key, value in attributes.items() if ":" in key and key.endswith(":id"))
    return next(prefixed, local(attributes, "id"))
