"""The records of documents, on both sides of the process boundary."""

from typing import Literal

import msgspec

from cadenza.core.content import Content
from cadenza.core.grounding import Count

PartType = Literal["image_url", "input_audio"]  # of a content part that a model may take as it is


class Section(Content, msgspec.Struct, frozen=True):
    """A part of a document that an answer can cite; or a passage of it, which is ranked and quoted.

    `label` is how it is cited: "page 3", "sheet Prices", "slide 2". It is empty where the format has no such parts.
    """

    label: str
    text: str


class FetchedPage(Content, msgspec.Struct, frozen=True, weakref=True):
    """A web page as it came: its address after all redirects, the server's content type, and its bytes."""

    url: str
    content_type: str
    body: bytes


class PageText(Content, msgspec.Struct, frozen=True):
    """The main text of a web page."""

    title: str
    sections: list[Section]


class RankedPassage(Content, msgspec.Struct, frozen=True, array_like=True):
    """A passage that may be shown, exactly as it stands in its section. `tokens` is the most that it takes."""

    number: Count  # its place among all passages of the document
    section: Count
    text: str
    tokens: Count
    is_row: bool = False  # of a table


class RankedDocument(Content, msgspec.Struct, frozen=True, tag=True):
    """The passages of a document that may be shown, the best first.

    `is_whole`: these are all of its passages. `is_sample`: no word of the question is in the document.
    """

    title: str
    labels: list[str]  # of all sections
    passage_counts: list[Count]  # of all sections
    row_counts: list[Count]  # how many of these passages are rows of tables
    passages: list[RankedPassage]
    tokens: Count  # of all its passages if it is whole, else more than those that are shown
    wanted_tokens: Count  # that the question needs of it
    is_whole: bool
    is_sample: bool = False


IS_LOCKED = "it is encrypted; save it without a password"


class Unreadable(Exception):
    """A file or page that cannot be read.

    `reason` ends the sentence "The file 'a.pdf' cannot be read: …": "it is an archive; unpack it". It never quotes the
    content. `part_type` is set for an image or audio file that can be sent to a model as such a part instead.
    """

    def __init__(self, reason: str, part_type: PartType | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.part_type = part_type
