"""The records of web search."""

from collections.abc import Sequence

import msgspec


class Hit(msgspec.Struct, frozen=True):
    """A result of an engine. `text` is all that is to be quoted where the engine has it; otherwise the page is read."""

    url: str
    title: str
    snippet: str = ""
    text: str = ""


class FetchedPage(msgspec.Struct, frozen=True, weakref=True):
    """A page as it came: its address after all redirects, the content type as the server gave it, and its bytes."""

    url: str
    content_type: str
    body: bytes


class EngineFailed(Exception):
    """An engine that gave no usable answer. The reason is for metrics and the log: one word, never content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FetchFailed(Exception):
    """A page that was not read. The reason is one word for the metrics: `refused`, `private`, `robots`, `too_large`…"""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cited(msgspec.Struct, frozen=True):
    """What an answer may cite: a page or a document."""

    url: str
    title: str


class Source(Cited, frozen=True):
    """What an answer may cite, and what the model is given of it."""

    text: str


class Unread(msgspec.Struct, frozen=True):
    """A page that the user named and that was not read. The reason ends a sentence that begins with "The page"."""

    url: str
    reason: str = "could not be read at the moment"


class Found(msgspec.Struct, frozen=True):
    """What a search found, and the pages that the user named and that were not read: the model is told of these.

    It is also told of a search that was wanted and failed.
    """

    sources: Sequence[Source] = ()
    unread: Sequence[Unread] = ()
    has_failed: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to quote."""
        return bool(self.sources)


NOTHING_FOUND = Found()
SEARCH_FAILED = Found(has_failed=True)
