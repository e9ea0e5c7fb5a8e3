"""What stands beside the messages of a chat: reference material, and what becomes of an answer that may cite it.

It is content. The core forwards it, and never looks into it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from cadenza.core.content import Content

Count = Annotated[int, msgspec.Meta(ge=0)]


class Edit(Content, msgspec.Struct, frozen=True):
    """New JSON for the bytes from `start` to `end` in the JSON of a message."""

    start: int
    end: int
    json: bytes


class Source(Content, msgspec.Struct, frozen=True):
    """A page or document that an answer may cite, and the text of it that the model gets."""

    url: str
    title: str
    text: str = ""


class ShownFile(Content, msgspec.Struct, frozen=True):
    """A file of which the model sees a part, and which part that is: "pages 1, 17-19 of 300"."""

    name: str
    shown: str


class FileSize(Content, msgspec.Struct, frozen=True, tag=True):
    """How large a file is: its parts in words ("300 pages"), its tokens, and the fewest that a question takes of it."""

    parts: str
    tokens: Count
    least_tokens: Count


class GroundedAnswer(Protocol):
    """The answer to a request with reference material, as it comes."""

    def take(self, text: str) -> str:
        """The text that can be sent now."""

    def end(self) -> str:
        """The text that was kept."""

    def annotations(self) -> list[dict[str, Any]]:
        """What the answer cites, at its end."""


class Grounding(Content, msgspec.Struct, frozen=True):
    """What was added to one request. Its answer may cite `sources`; `headers` tell the client what was added.

    `answer` makes what the text of the answer goes through, on its way to the client. `charged_nano` is the price of
    the searches.
    """

    edits: Mapping[int, Sequence[Edit]] = {}  # by the index of the message
    texts: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    headers: bytes = b""
    answer: Callable[[], GroundedAnswer] | None = None
    texts_bytes: int = 0  # of the texts, encoded in JSON
    charged_nano: int = 0
    cut_files: tuple[ShownFile, ...] = ()

    def edited(self, index: int, message: msgspec.Raw) -> list[bytes | memoryview]:
        """The new message, in pieces. Its edits do not overlap."""
        raw, end, pieces = memoryview(message), 0, list[bytes | memoryview]()
        for edit in sorted(self.edits[index], key=lambda edit: (edit.start, edit.end)):
            pieces += [raw[end : edit.start], edit.json]
            end = edit.end
        return [*pieces, raw[end:]]


NO_GROUNDING = Grounding()
