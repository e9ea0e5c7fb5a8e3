"""Gathers reference material for a chat request: its files, the account's notes and web search.

It runs before the credit is held, so the tokens that it adds are paid for. If memory or search fails or is late, it is
left out and counted, and the reply still comes; the model is told that a search failed. They add no more than the
credit pays for beside an answer of usual length, so a request is never refused because of them. A file is never left
out: one that cannot be read is 400 with its name, and one that cannot be read at the moment is 429.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TypeVar

import msgspec

from cadenza.core.chat import ASKS_FOR_SEARCH, ChatRequest, UserQuestion, find_user_question
from cadenza.core.errors import CadenzaError, RateLimited, UnreadableAttachment
from cadenza.core.grounding import NO_GROUNDING, FileSize, Grounding
from cadenza.core.money import Price
from cadenza.core.records import Plan, Principal, Route
from cadenza.core.tokens import estimate_tokens, output_room
from cadenza.gateway.grounding import SearchTerms, Wanted
from cadenza.observe import Observer
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.reader import DocumentReader, ReaderBusy, SentFile
from cadenza.parts.grounding.files.shown import DocumentText
from cadenza.parts.grounding.material import Material, insert_material
from cadenza.parts.grounding.memory import recall
from cadenza.parts.grounding.metrics import GroundingMetrics
from cadenza.parts.grounding.search.records import (
    NOTHING_FOUND,
    SEARCH_FAILED,
    ChargeSearch,
    EngineFailed,
    SearchRequest,
    SearchResult,
)
from cadenza.parts.grounding.search.web_search import WebSearch
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store, StoreUnavailable

T = TypeVar("T")
OnPart = Callable[[str, float, str], None]

FILES_S = 60.0
MEMORY_S = 1.0
SEARCH_TOKENS_MAX = 4_000
MEMORY_TOKENS_MAX = 1_000
SEARCH_SHARE = 8  # search adds at most an eighth of the smallest window
MEMORY_SHARE = 16
FILES_SHARE = 2  # files get at most half of the largest window, so that the conversation can go on
ANSWER_TOKENS = 1024  # kept free for an answer whose length the client does not limit
ANSWER_SHARE = 4  # but no more than a quarter of a window
COUNT_SHARE = 4  # a prompt that may fill a quarter of a window is counted exactly
FENCE_TOKENS = 100  # of the fence around a piece of material
INLINE_CHARS = 256 * 1024  # more text of files is fenced and encoded off the event loop: 8 MB take 30 ms
LEAST_TOKENS = 64  # a part with less room than this is left out
NO_ROOM = (
    "there is no room for it beside the messages; send a shorter conversation, or use a class with a larger window"
)
FAILURES = (TimeoutError, ReaderBusy, EngineFailed, StoreUnavailable)  # of a part


class Affordable(msgspec.Struct, frozen=True):
    """What a request can pay with: the credit of its account or, if that is less, what is left under a cap."""

    free_nano: int
    price: Price

    def added_tokens(self, prompt_tokens: int, chat: ChatRequest) -> int:
        """How many tokens may be added to a prompt of this length, beside an answer of usual length."""
        answer_tokens = min(chat.max_tokens or ANSWER_TOKENS, ANSWER_TOKENS)
        return self.price.affordable_prompt(self.free_nano, answer_tokens) - prompt_tokens - FENCE_TOKENS


class GroundingRequest(msgspec.Struct, frozen=True):
    """A chat request, with its budget.

    `charge` charges a search. `on_part` is told each part that was gathered, when it began, and its result.
    """

    chat: ChatRequest
    plan: Plan
    prompt: PromptSize
    principal: Principal
    affordable: Affordable
    charge: ChargeSearch = nullcontext
    on_part: OnPart = lambda _part, _began_s, _result: None


class GroundingBudget(msgspec.Struct, frozen=True):
    """How many tokens each part may add, by the windows of the routes."""

    files: int
    memory: int
    search: int


class Gatherer:
    """Gathers for the requests of one process."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        metrics: GroundingMetrics,
        search: WebSearch | None = None,
        reader: DocumentReader | None = None,
    ) -> None:
        self.store = store
        self.search = search  # None if the config turns it off
        self._observer = observer
        self._metrics = metrics
        self._reader = reader or (search.reader if search else DocumentReader(observer))

    async def gather(self, request: GroundingRequest, wanted: Wanted) -> Grounding:
        """Gather what is wanted, and insert it into the messages. 400 if a file cannot be read, 429 if not now."""
        chat = request.chat
        question = chat.question
        if question is None and isinstance(chat.texts, list):
            question = find_user_question(chat.messages, chat.texts)
        if question is None:
            return NO_GROUNDING
        budget = await token_budget(request.plan, request.prompt, chat)
        files = await self._read_files(request, question, budget.files) if wanted.files else ()
        prompt_tokens = request.prompt.exact or request.prompt.bound
        left = request.affordable.added_tokens(prompt_tokens + sum(file.tokens for file in files), chat)
        memory = min(budget.memory, left) if wanted.memory else 0
        search = min(budget.search, left - memory - self._search_cost(request)) if wanted.search else 0
        notes, found = await asyncio.gather(
            self._recall(request, question, memory), self._find_sources(request, question, search)
        )
        material = Material(files, notes, found)
        if not material:
            return NO_GROUNDING
        if sum(len(file.text) for file in files) > INLINE_CHARS:
            return await asyncio.to_thread(insert_material, chat, question, material)
        return insert_material(chat, question, material)

    def search_terms(self) -> SearchTerms | None:
        """What a search costs; None without an engine."""
        if self.search is None:
            return None
        given = self.search.settings
        return SearchTerms(given.engine, given.price_nano, given.searches_per_day)

    async def stop(self) -> None:
        if self.search:
            await self.search.close()
        await self._reader.stop()

    def _search_cost(self, request: GroundingRequest) -> int:
        """The price of a search in prompt tokens, for which the same credit pays."""
        terms, price = self.search_terms(), request.affordable.price
        price_nano = terms.price_nano if terms else 0
        return -(-price_nano // price.input_nano) if price.input_nano else 0

    async def _read_files(
        self, request: GroundingRequest, question: UserQuestion, tokens_max: int
    ) -> Sequence[DocumentText]:
        sent = [SentFile(part.name, memoryview(part.data)) for part in request.chat.files]
        asked = AskedOfFiles(question.text, question.texts[-2] if len(question.texts) > 1 else "")
        reading = self._reader.read_files(request.principal.account_id, sent, asked, tokens_max)
        texts = await self._in_time(reading, request.on_part)
        for one in texts:
            if one.is_cut and one.tokens < LEAST_TOKENS:
                raise UnreadableAttachment(one.name, NO_ROOM)
        return texts

    async def measure_file(self, account_id: str, name: str, data: bytes) -> FileSize:
        """How large a file is. 400 if it cannot be read, 429 if not now."""
        return await self._in_time(self._reader.measure(account_id, name, data))

    async def _in_time(self, reading: Awaitable[T], on_part: OnPart | None = None) -> T:
        try:
            return await self._run("attachments", FILES_S, reading, on_part)
        except FAILURES as failure:
            self._observer.metrics.refused.labels("files").inc()
            busy = failure if isinstance(failure, ReaderBusy) else ReaderBusy("it took too long", retry_s=5.0)
            raise RateLimited(f"The files were not read: {busy.reason}. Retry.", busy.retry_s, "files") from None

    async def _recall(self, request: GroundingRequest, question: UserQuestion, tokens_max: int) -> Sequence[str]:
        if tokens_max < LEAST_TOKENS:
            return ()
        recalling = recall(self.store, request.principal.account_id, question.text, tokens_max)
        try:
            return await self._run("memory", MEMORY_S, recalling, request.on_part)
        except FAILURES:
            return ()

    async def _find_sources(self, request: GroundingRequest, question: UserQuestion, tokens_max: int) -> SearchResult:
        if tokens_max < LEAST_TOKENS or self.search is None:
            return NOTHING_FOUND
        account_id, is_asked = request.principal.account_id, ASKS_FOR_SEARCH in request.chat.extra
        wanted = SearchRequest(account_id, question.texts, tokens_max, request.charge, is_asked)
        try:
            limit_s = self.search.settings.timeout_s
            return await self._run("search", limit_s, self.search.find(wanted), request.on_part)
        except FAILURES:
            return SEARCH_FAILED

    async def _run(self, part: str, limit_s: float, gathering: Awaitable[T], on_part: OnPart | None = None) -> T:
        """The result of a part. Each outcome is counted, a failure with its reason."""
        metrics, began_s, result = self._metrics, time.perf_counter(), "failed"
        try:
            async with asyncio.timeout(limit_s):
                found = await gathering
        except FAILURES as failure:
            result = "late" if isinstance(failure, TimeoutError) else "failed"
            metrics.results.labels(part, result).inc()
            metrics.failures.labels(part, failure_reason(failure)).inc()
            raise
        else:
            result = "added" if found else "nothing"
            metrics.results.labels(part, result).inc()
            return found
        finally:
            metrics.seconds.add(part, time.perf_counter() - began_s)
            if on_part:
                on_part(part, began_s, result)


def failure_reason(failure: Exception) -> str:
    """The label of the metric: `late`, `store`, `readers`, or a reason of an engine (see `engines/base.py`)."""
    match failure:
        case EngineFailed():
            return failure.reason
        case TimeoutError():
            return "late"
        case StoreUnavailable():
            return "store"
        case _:
            return "readers"


async def token_budget(plan: Plan, prompt: PromptSize, chat: ChatRequest) -> GroundingBudget:
    """Memory and search fit the smallest window, so that they rule out no route; files may fill half of the largest."""
    smallest = min(plan.routes, key=lambda route: route.context_tokens)
    largest = max(plan.routes, key=lambda route: route.context_tokens)
    tokens = prompt.exact or prompt.bound
    if tokens > smallest.context_tokens // COUNT_SHARE:
        with suppress(CadenzaError):  # it cannot be counted now: the bound leaves less room
            tokens = await prompt.count()
    answer_tokens = chat.max_tokens or ANSWER_TOKENS

    def room(route: Route) -> int:
        return output_room(route, tokens) - min(answer_tokens, route.context_tokens // ANSWER_SHARE) - FENCE_TOKENS

    left_tokens = max(0, room(smallest))
    memory = min(MEMORY_TOKENS_MAX, smallest.context_tokens // MEMORY_SHARE, left_tokens)
    search = min(SEARCH_TOKENS_MAX, smallest.context_tokens // SEARCH_SHARE, left_tokens - memory)
    fences_tokens = sum(FENCE_TOKENS + estimate_tokens(file.name) for file in chat.files)
    files = min(room(largest) - memory - search, largest.context_tokens // FILES_SHARE) - fences_tokens
    return GroundingBudget(max(0, files), memory, search)
