"""XML as a series of events, without a tree: depth and size cost no memory.

A document type declaration is refused, so that there are no entities to expand or to fetch. Prefixes of namespaces are
left out of the names: the formats that are read here have no two elements that differ by them alone.
"""

from collections.abc import Iterable
from typing import Protocol
from xml.parsers import expat

from cadenza.grounding.files.records import Unreadable

Attributes = dict[str, str]


class XmlReader(Protocol):
    """What takes the events."""

    def start(self, tag: str, attributes: Attributes) -> None: ...
    def end(self, tag: str) -> None: ...
    def text(self, data: str) -> None: ...


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
    except (expat.ExpatError, LookupError, ValueError):  # the last two for an encoding that is not one
        raise Unreadable("it is damaged: its XML cannot be parsed") from None


def local(attributes: Attributes, name: str) -> str:
    """An attribute by its name without the prefix."""
    if name in attributes:
        return attributes[name]
    return next((value for key, value in attributes.items() if key.rpartition(":")[2] == name), "")


def _refuse_doctype(*_: object) -> None:
    raise Unreadable("it has a document type declaration, which is not allowed in such a file")
