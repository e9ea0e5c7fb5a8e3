"""The records of web search."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec

from cadenza.core.content import Content
from cadenza.core.grounding import Source

ChargeSearch = Callable[[str], AbstractAsyncContextManager[object]]  # of a query; EngineFailed if it must not be made


class SearchRequest(Content, msgspec.Struct, frozen=True):
    """One search: the account, the last user messages, oldest first, and how many tokens its sources may have.

    `charge` charges it. If the request asks for it, `is_asked`, the score of its words does not count.
    """

    account_id: str
    texts: Sequence[str]
    tokens_max: int
    charge: ChargeSearch = nullcontext
    is_asked: bool = False


class Hit(Content, msgspec.Struct, frozen=True):
    """A result of an engine."""

    url: str
    title: str
    snippet: str = ""


class EngineFailed(Exception):
    """A search without a usable answer. `reason` is one word of the table in `engines/base.py`, never content.

    `retry_after_s` is for how long a busy engine does not want to be asked, if it says so.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class FetchFailed(Exception):
    """A page that was not read. `reason` is one word of the table in `pages/fetch.py`, never content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnreadPage(Content, msgspec.Struct, frozen=True):
    """A page that the user named and that was not read. The reason ends a sentence that begins with "The page"."""

    url: str
    reason: str = "could not be read at the moment"


class SearchResult(msgspec.Struct, frozen=True):
    """The sources. The model is also told of the pages that were not read, and of a search that failed."""

    sources: Sequence[Source] = ()
    unread: Sequence[UnreadPage] = ()
    has_failed: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to quote."""
        return bool(self.sources)


NOTHING_FOUND = SearchResult()
SEARCH_FAILED = SearchResult(has_failed=True)
