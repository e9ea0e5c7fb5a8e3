"""The records of this room."""

import msgspec


class Section(msgspec.Struct, frozen=True):
    """A part of a document that an answer can cite.

    `label` is how it is cited: "page 3", "sheet Prices", "slide 2". It is empty where the format has no such parts.
    """

    label: str
    text: str


class Passage(msgspec.Struct, frozen=True):
    """A few paragraphs of one section, as they are ranked and quoted."""

    label: str
    text: str


class Unreadable(Exception):
    """A file or page that cannot be read.

    `reason` ends the sentence "The file 'a.pdf' cannot be read: …": "it is encrypted". It never quotes the content.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
