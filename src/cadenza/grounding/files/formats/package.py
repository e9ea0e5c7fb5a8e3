"""An Office Open XML package: its parts, and the relationships between them."""

import posixpath

from cadenza.grounding.files.formats.archive import DAMAGED, Archive
from cadenza.grounding.files.formats.xml_events import Attributes, XmlReader, local, read_xml
from cadenza.grounding.files.records import Unreadable


class Relation(tuple[str, str]):
    """The kind of a relationship, which is the last word of its address, and the part that it leads to."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return self[0]

    @property
    def target(self) -> str:
        return self[1]


class _Relations:
    """Reads one part of relationships. Those to the outside are left out: nothing is ever fetched."""

    def __init__(self, folder: str) -> None:
        self.found: dict[str, Relation] = {}
        self._folder = folder

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "Relationship" and attributes.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", self._folder, attributes.get("Target", "")))
            kind = attributes.get("Type", "").rpartition("/")[2]
            self.found[attributes.get("Id", "")] = Relation((kind, target.lstrip("/")))

    def end(self, tag: str) -> None:
        pass

    def text(self, data: str) -> None:
        pass


class Package:
    """The parts of a package."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

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

    def main_part(self, usual: str) -> str:
        """The part that is the document itself; `usual` is its customary name."""
        parts = [*self.related("", "officeDocument"), usual]
        found = next((part for part in parts if self.archive.has(part)), None)
        if found is None:
            raise Unreadable(DAMAGED)
        return found

    def read(self, part: str, reader: XmlReader) -> None:
        read_xml(self.archive.stream(part), reader)


def relation_id(attributes: Attributes) -> str:
    """The id of a relationship, as an element refers to it: `r:id`, with whatever prefix."""
    prefixed = (value for key, value in attributes.items() if ":" in key and key.endswith(":id"))
    return next(prefixed, local(attributes, "id"))
