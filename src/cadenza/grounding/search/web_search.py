"""Web search as the stage sees it: whether it is ready, and the sources for a question.

The engines and the fetcher are imported with the first search: a service that never searches does not need them.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from cadenza.grounding.files.reader import DocumentReader
from cadenza.grounding.search.records import Found
from cadenza.observe import Log, Observer

if TYPE_CHECKING:
    from cadenza.grounding.search.finder import Finder

DecideByModel = Callable[[Sequence[str], float], Awaitable[bool | None]]  # within this many seconds
ChargeSearch = Callable[[str], AbstractAsyncContextManager[object]]  # of a query; EngineFailed if it must not be made
EngineName = Literal["searxng", "brave", "tavily", "local"]
LOOK_S = 0.1  # to look for the index takes 20 µs, a twentieth of a plain request


class SearchOptions(msgspec.Struct, frozen=True):
    """The engine and its limits. `index` is the file of the local engine."""

    engine: EngineName
    index: Path
    url: str | None = None
    api_key: str | None = None
    proxy: str | None = None
    max_results: int = 5
    timeout_s: float = 6.0
    allow_networks: tuple[str, ...] = ()
    price_nano: int = 0  # of one search
    searches_per_day: int = 1000  # of one account


class SearchRequest(msgspec.Struct, frozen=True):
    """One search to make: for whom, the last user messages, oldest first, and how many tokens its sources may have.

    `charge` charges it, and `decide` asks a model whether it is needed.
    """

    account_id: str
    asked: Sequence[str]
    tokens_max: int
    charge: ChargeSearch = nullcontext
    decide: DecideByModel | None = None


class WebSearch:
    """The search of one process."""

    def __init__(self, settings: SearchOptions, observer: Observer) -> None:
        self.settings = settings
        self.reader = DocumentReader(observer)
        self._log = observer.log
        self._needs_no_index = settings.engine != "local"
        self._index = settings.index
        self._has_index, self._looked_s = False, -math.inf
        self._finder: Finder | None = None

    def is_ready(self) -> bool:
        """Whether there is an engine. The local one needs its index, which is seen soon after it appears."""
        if self._needs_no_index:
            return True
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_S:
            self._has_index, self._looked_s = self._index.exists(), now_s
        return self._has_index

    async def find(self, search: SearchRequest) -> Found:
        """The sources for the last message; none if it needs no search. EngineFailed if the engine fails."""
        finder = self._finder or await self._make_finder()
        return await finder.find(search)

    async def close(self) -> None:
        if self._finder:
            await self._finder.close()

    async def _make_finder(self) -> "Finder":
        """The import takes 100 ms, which other requests do not wait for."""
        build = await asyncio.to_thread(_import_finder)
        if self._finder is None:
            self._finder = build(self.settings, self.reader, self._log)
        return self._finder


def _import_finder() -> "Callable[[SearchOptions, DocumentReader, Log], Finder]":
    from cadenza.grounding.search.finder import build_finder  # noqa: PLC0415 import time

    return build_finder
