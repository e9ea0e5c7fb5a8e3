"""Finds the sources for a question: decides, asks the engine, reads the best pages, and takes what fits.

A page that is read in time is quoted; for the others, the engine's snippet is. The model is told which pages of the
message could not be read.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from ipaddress import ip_network

import msgspec

from cadenza.core.grounding import Source
from cadenza.core.retention_limits import USUAL_LIMITS, RetentionLimits
from cadenza.core.tokens import estimate_tokens
from cadenza.observe import Log
from cadenza.parts.grounding.files.reader import DocumentReader, ReaderBusy
from cadenza.parts.grounding.files.records import FetchedPage
from cadenza.parts.grounding.search.cache import RESULT_BOUNDS, ResultCache
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.engines.build import build_web_engine
from cadenza.parts.grounding.search.engines.guard import GuardedEngine
from cadenza.parts.grounding.search.intent.decision import Decision, decide
from cadenza.parts.grounding.search.intent.query import make_query
from cadenza.parts.grounding.search.pages.client import FetchLimits
from cadenza.parts.grounding.search.pages.fetch import PageFetcher
from cadenza.parts.grounding.search.records import (
    NOTHING_FOUND,
    EngineFailed,
    FetchFailed,
    Hit,
    SearchRequest,
    SearchResult,
    UnreadPage,
)
from cadenza.parts.grounding.settings import SearchSettings

PAGES_MAX = 3  # of the results; the pages that the message names come on top
NAMED_PAGES_MAX = 3
TOO_MANY = f"was not read: only the first {NAMED_PAGES_MAX} addresses of a message are read"
PAGES_TIME = 0.75  # of the time limit: what is not fetched by then is left out
READ_TIME = 0.95  # of the time limit: if the pages are not read by then, the snippets are quoted
SOURCE_TOKENS = 60  # of the fence around a source
TITLE_CHARS_MAX = 200
DOUBTFUL = frozenset(("score", "follow_up"))
UNREAD_TOKENS = 30  # of the sentence about an unread page, beside its address
UNREAD_SHARE = 2  # these sentences take at most half of the tokens


class Finder:
    """The engine, the fetcher and the cache of one process."""

    def __init__(
        self,
        engine: Engine,
        fetcher: PageFetcher,
        reader: DocumentReader,
        settings: SearchSettings,
        kept_s: int = USUAL_LIMITS.search_result_s,
    ) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._reader = reader
        self._max_results = settings.max_results
        self._timeout_s = settings.timeout_s
        self._cache = ResultCache(time.monotonic, RESULT_BOUNDS.for_age(kept_s))

    async def find(self, request: SearchRequest) -> SearchResult:
        """The sources for the last message. EngineFailed if the engine fails and no page was read."""
        now_s, today = asyncio.get_running_loop().time(), datetime.now(UTC).date()
        decision = decide(request.texts, today, self._fetcher.loopback)
        if request.is_asked and decision.reason in DOUBTFUL:
            decision = msgspec.structs.replace(decision, needs_web=True, reason="asked")
        if not decision.needs_web:
            return NOTHING_FOUND
        found = await self._hits(request, decision, today, now_s + self._timeout_s * READ_TIME)
        hits = found or ()
        urls = [*decision.urls[:NAMED_PAGES_MAX], *(hit.url for hit in hits[:PAGES_MAX])]
        pages = await fetch_pages(self._fetcher, request.account_id, urls, now_s + self._timeout_s * PAGES_TIME)
        read = dict[str, Source]()
        with suppress(ReaderBusy, TimeoutError):
            async with asyncio.timeout_at(now_s + self._timeout_s * READ_TIME):
                read = await self._read(request, pages)
        named = [read[url] for url in decision.urls if url in read]
        not_read = [
            UnreadPage(url) if place < NAMED_PAGES_MAX else UnreadPage(url, TOO_MANY)
            for place, url in enumerate(decision.urls)
            if url not in read
        ]
        unread, unread_tokens = _fitting_unread(not_read, request.tokens_max)
        sources = [*named, *(read.get(hit.url) or Source(hit.url, hit.title, hit.snippet) for hit in hits)]
        return SearchResult(fitting(sources, request.tokens_max - unread_tokens), unread, has_failed=found is None)

    async def close(self) -> None:
        self._cache.clear()
        await self._engine.close()
        await self._fetcher.close()

    async def _hits(
        self, request: SearchRequest, decision: Decision, today: date, until_s: float
    ) -> Sequence[Hit] | None:
        """A message that only names pages needs no engine. None if the engine failed, and there are such pages."""
        if decision.reason == "url":
            return ()
        query = make_query(request.texts, today)
        try:
            async with request.charge(query), asyncio.timeout_at(until_s):  # too late is a failure, and free
                return await self._cache.search(self._engine, query, self._max_results)
        except (EngineFailed, TimeoutError):
            if not decision.urls:
                raise
            return None

    async def _read(self, request: SearchRequest, pages: dict[str, FetchedPage]) -> dict[str, Source]:
        """The sources of the pages that could be read, by the requested address."""
        if not pages:
            return {}
        tokens_max = request.tokens_max - len(pages) * SOURCE_TOKENS
        found = await self._reader.read_pages(request.account_id, [*pages.values()], request.texts[-1], tokens_max)
        return {
            url: Source(page.url, one.name[:TITLE_CHARS_MAX] or page.url, one.text)
            for (url, page), one in zip(pages.items(), found, strict=True)
            if one and one.text
        }


async def fetch_pages(fetcher: PageFetcher, owner: str, urls: Iterable[str], until_s: float) -> dict[str, FetchedPage]:
    """The pages that came in time, by the requested address."""
    tasks = {url: asyncio.create_task(fetcher.fetch(url, owner)) for url in dict.fromkeys(urls)}
    if not tasks:
        return {}
    try:
        await asyncio.wait(tasks.values(), timeout=until_s - asyncio.get_running_loop().time())
    finally:
        for task in tasks.values():
            task.cancel()
    ended = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
    for outcome in ended.values():
        if isinstance(outcome, Exception) and not isinstance(outcome, FetchFailed):
            raise outcome
    return {url: page for url, page in ended.items() if isinstance(page, FetchedPage)}


def fitting(sources: Iterable[Source], tokens_max: int) -> list[Source]:
    """The sources that fit, in their order, each page once."""
    kept, left_tokens = dict[str, Source](), tokens_max
    for source in sources:
        tokens = estimate_tokens(source.text) + estimate_tokens(source.url + source.title) + SOURCE_TOKENS
        if source.text and tokens <= left_tokens and source.url not in kept:
            kept[source.url] = source
            left_tokens -= tokens
    return list(kept.values())


def _fitting_unread(unread: Iterable[UnreadPage], tokens_max: int) -> tuple[list[UnreadPage], int]:
    """The pages that were not read, as far as there is room to say so, and the tokens that it takes."""
    told, tokens = list[UnreadPage](), 0
    for page in unread:
        more_tokens = estimate_tokens(page.url) + UNREAD_TOKENS
        if tokens + more_tokens <= tokens_max // UNREAD_SHARE:
            told.append(page)
            tokens += more_tokens
    return told, tokens


def build_finder(settings: SearchSettings, kept: RetentionLimits, reader: DocumentReader, log: Log) -> Finder:
    engine = GuardedEngine(build_web_engine(settings), time.monotonic, log)
    limits = FetchLimits()
    limits = msgspec.structs.replace(limits, pages=limits.pages.for_age(kept.page_s))
    fetcher = PageFetcher(limits, allow_networks=[ip_network(one) for one in settings.allow_networks])
    return Finder(engine, fetcher, reader, settings, kept.search_result_s)
