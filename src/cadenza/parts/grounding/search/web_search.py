"""Web search as `gather` sees it: the sources for a question.

The engines and the fetcher are imported with the first search: a service that never searches does not need them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cadenza.core.retention_limits import RetentionLimits
from cadenza.observe import Log, Observer
from cadenza.parts.grounding.files.reader import DocumentReader
from cadenza.parts.grounding.search.records import SearchRequest, SearchResult
from cadenza.parts.grounding.settings import SearchSettings

if TYPE_CHECKING:
    from cadenza.parts.grounding.search.finder import Finder


class WebSearch:
    """The search of one process."""

    def __init__(self, settings: SearchSettings, kept: RetentionLimits, observer: Observer) -> None:
        self.settings = settings
        self._kept = kept
        self.reader = DocumentReader(observer)
        self._log = observer.log
        self._finder: Finder | None = None

    async def find(self, request: SearchRequest) -> SearchResult:
        """The sources for the last message; none if it needs no search. EngineFailed if the engine fails."""
        finder = self._finder or await self._make_finder()
        return await finder.find(request)

    async def close(self) -> None:
        if self._finder:
            await self._finder.close()

    async def _make_finder(self) -> "Finder":
        """The import takes 100 ms, which other requests do not wait for."""
        build = await asyncio.to_thread(_import_finder)
        if self._finder is None:
            self._finder = build(self.settings, self._kept, self.reader, self._log)
        return self._finder


def _import_finder() -> "Callable[[SearchSettings, RetentionLimits, DocumentReader, Log], Finder]":
    from cadenza.parts.grounding.search.finder import build_finder  # noqa: PLC0415 import time

    return build_finder
