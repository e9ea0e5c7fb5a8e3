"""The step of a chat request that adds reference material: attachments, memory and web search, all at once.

It comes before the hold, so its tokens are paid for. If memory or search fails or is late, it is left out and counted,
and the reply still comes; the model is told that a search failed. They add no more than the credit pays for beside a
usual answer: a question that can be paid for is never refused because of them. A file is never left out: one that
cannot be read is 400, with its name, and one that cannot be read now is 429. Requests with tools get none of it.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext, suppress
from typing import TypeVar

import msgspec

from cadenza.core.chat import Asked, ChatRequest, FilePart
from cadenza.core.errors import CadenzaError, RateLimited, UnreadableAttachment
from cadenza.core.money import Price
from cadenza.core.records import Plan, Principal, Route
from cadenza.core.tokens import estimate_tokens, output_room
from cadenza.grounding.additions import NO_GROUNDING, Grounding, Material, ReadFile, add_material
from cadenza.grounding.asked import find_asked
from cadenza.grounding.charges import SearchTerms
from cadenza.grounding.files.reader import DocumentReader, ReaderBusy, SentFile, UnreadableFile
from cadenza.grounding.memory import recall
from cadenza.grounding.search.intent.model_decision import DECISION_TOKENS, decision_bytes
from cadenza.grounding.search.records import NOTHING_FOUND, SEARCH_FAILED, EngineFailed, Found
from cadenza.grounding.search.web_search import ChargeSearch, DecideByModel, EngineName, SearchRequest, WebSearch
from cadenza.grounding.switch import is_turned_off
from cadenza.http.exchange import Request
from cadenza.observe import Observer
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store, StoreUnavailable

T = TypeVar("T")

FILES_S = 60.0
MEMORY_S = 1.0
SEARCH_TOKENS_MAX = 4_000
MEMORY_TOKENS_MAX = 1_000
SEARCH_SHARE = 8  # search adds at most an eighth of the smallest window
MEMORY_SHARE = 16
FILES_SHARE = 2  # files get at most half of the largest window: the conversation goes on
ANSWER_TOKENS = 1024  # kept free for an answer whose length the client does not limit
ANSWER_SHARE = 4  # but no more than a quarter of a window
COUNT_SHARE = 4  # a prompt that may fill a quarter of a window is counted
FENCE_TOKENS = 100  # what marks a piece of material
INLINE_CHARS = 256 * 1024  # more text of files is fenced and encoded off the event loop: 8 MB take 30 ms
LEAST_TOKENS = 64  # less room than this is of no use
NO_ROOM = (
    "there is no room for it beside the messages; send a shorter conversation, or use a class with a larger window"
)
LATE = "it took too long"
LATE_RETRY_S = 5.0


class GroundingOptions(msgspec.Struct, frozen=True):
    """Which parts are on. Web search has settings of its own."""

    attachments: bool = True
    memory: bool = True


class Budget(msgspec.Struct, frozen=True):
    """How many tokens each part may add."""

    files: int
    memory: int
    search: int


class Wanted(msgspec.Struct, frozen=True):
    """What one request may have: reading its files costs it nothing more, the others can be turned off."""

    files: bool
    memory: bool
    search: bool

    def __bool__(self) -> bool:
        return self.files or self.memory or self.search


NOTHING_WANTED = Wanted(files=False, memory=False, search=False)


class Affordable(msgspec.Struct, frozen=True):
    """What a request can be paid with: the credit of its account or, if that is less, what is left under a cap."""

    free_nano: int
    price: Price

    def pay_for(self, prompt_tokens: int, chat: ChatRequest) -> int:
        """How many tokens may be added to so long a prompt, if the answer has its usual length."""
        answer_tokens = min(chat.max_tokens or ANSWER_TOKENS, ANSWER_TOKENS)
        return self.price.affordable_prompt(self.free_nano, answer_tokens) - prompt_tokens - FENCE_TOKENS


class GroundingRequest(msgspec.Struct, frozen=True):
    """The request that material is sought for.

    `charge` charges a search. `decide` asks a model whether one is needed; without it, rules do.
    """

    chat: ChatRequest
    plan: Plan
    prompt: PromptSize
    principal: Principal
    means: Affordable
    charge: ChargeSearch = nullcontext
    decide: DecideByModel | None = None


class LeftOut(Exception):
    """A part was left out, because it failed or was late."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure


class Grounder:
    """Adds reference material to the requests of one process. A reload that changes `[grounding]` makes another one."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        settings: GroundingOptions | None = None,
        search: WebSearch | None = None,
        reader: DocumentReader | None = None,
    ) -> None:
        self.settings = settings or GroundingOptions()
        self.store = store
        self._observer = observer
        self._search = search
        self._reader = reader or (search.reader if search else DocumentReader(observer))

    def wanted(self, chat: ChatRequest, principal: Principal, request: Request) -> Wanted:
        """Which parts apply to a request. Most requests have none."""
        if chat.tools:
            return NOTHING_WANTED
        memory = principal.has_notes and self.settings.memory
        search = principal.may_search and self._search is not None and self._search.is_ready()
        if not (memory or search or chat.files):
            return NOTHING_WANTED
        if (memory or search) and is_turned_off(request):
            memory = search = False
        files = bool(chat.files) and self.settings.attachments
        return Wanted(files=files, memory=memory, search=search) or NOTHING_WANTED

    def search_terms(self) -> SearchTerms | None:
        """What a search costs; None if there is no engine that is asked over the network."""
        if self._search is None or self._search.settings.engine == "local":
            return None
        given = self._search.settings
        return SearchTerms(given.engine, given.price_nano, given.searches_per_day)

    @property
    def has_search(self) -> bool:
        """False if the config turns search off."""
        return self._search is not None

    def search_engine(self) -> EngineName | None:
        """The engine that is asked; None if there is none, or if the local one has no index yet."""
        return self._search.settings.engine if self._search and self._search.is_ready() else None

    async def ground(self, sought: GroundingRequest, wanted: Wanted) -> Grounding:
        """Find what fits, and put it into the messages. 400 if a file cannot be read, 429 if it cannot be now."""
        chat, principal = sought.chat, sought.principal
        asked = chat.asked or (find_asked(chat.messages, chat.texts) if isinstance(chat.texts, list) else None)
        if asked is None:
            return NO_GROUNDING
        budget = await budget_for(sought.plan, sought.prompt, chat)
        files = await self._read_files(chat.files, asked, budget.files, principal) if wanted.files else ()
        paid_tokens = sought.means.pay_for(sought.prompt.at_most + sum(file.tokens for file in files), chat)
        memory = min(budget.memory, paid_tokens) if wanted.memory else 0
        search = min(budget.search, paid_tokens - memory - self._price_in_tokens(sought, asked)) if wanted.search else 0
        notes, found = await asyncio.gather(
            self._recall(asked, memory, principal), self._find_sources(asked, search, sought)
        )
        if not (files or notes or found or found.unread or found.has_failed):
            return NO_GROUNDING
        material = Material(files, notes, found)
        if sum(len(file.text) for file in files) > INLINE_CHARS:
            return await asyncio.to_thread(add_material, chat, asked, material)
        return add_material(chat, asked, material)

    def _price_in_tokens(self, sought: GroundingRequest, asked: Asked) -> int:
        """How many prompt tokens a search costs, with the decision about it: what pays for it cannot pay for them."""
        terms, price = self.search_terms(), sought.means.price
        price_nano = terms.price_nano if terms else 0
        if sought.decide:
            price_nano += price.quote(decision_bytes(asked.texts), DECISION_TOKENS)
        return -(-price_nano // price.input_nano) if price.input_nano else 0

    async def stop(self) -> None:
        if self._search:
            await self._search.close()
        await self._reader.stop()

    async def _read_files(
        self, files: Sequence[FilePart], asked: Asked, tokens_max: int, principal: Principal
    ) -> Sequence[ReadFile]:
        sent = [SentFile(part.name, memoryview(part.data)) for part in files]
        reading = self._reader.read_files(principal.account_id, sent, asked.question, tokens_max)
        try:
            texts = await self._within(FILES_S, "attachments", reading)
        except LeftOut as left_out:
            self._observer.metrics.refused.labels("files").inc()
            failure = left_out.failure
            busy = failure if isinstance(failure, ReaderBusy) else ReaderBusy(LATE, LATE_RETRY_S)
            raise RateLimited(f"The files were not read: {busy.reason}. Retry.", busy.retry_s) from None
        except UnreadableFile as error:
            advice = f", or send it as an '{error.part_type}' part" if error.part_type else ""
            raise UnreadableAttachment(error.name, error.reason, advice) from None
        for one in texts:
            if one.is_cut and one.tokens < LEAST_TOKENS:
                raise UnreadableAttachment(one.name, NO_ROOM)
        return [
            ReadFile(part, one.text, one.shown if one.is_cut else "", one.tokens)
            for part, one in zip(files, texts, strict=True)
        ]

    async def _recall(self, asked: Asked, tokens_max: int, principal: Principal) -> Sequence[str]:
        if tokens_max < LEAST_TOKENS:
            return ()
        recalling = recall(self.store, principal.account_id, asked.question, tokens_max)
        try:
            return await self._within(MEMORY_S, "memory", recalling)
        except LeftOut:
            return ()

    async def _find_sources(self, asked: Asked, tokens_max: int, sought: GroundingRequest) -> Found:
        if tokens_max < LEAST_TOKENS or self._search is None:
            return NOTHING_FOUND
        search = SearchRequest(sought.principal.account_id, asked.texts, tokens_max, sought.charge, sought.decide)
        try:
            return await self._within(self._search.settings.timeout_s, "search", self._search.find(search))
        except LeftOut:
            return SEARCH_FAILED

    async def _within(self, limit_s: float, part: str, finding: Awaitable[T]) -> T:
        """What a part finds, or LeftOut. Each end is counted, a failure with its reason."""
        metrics = self._observer.metrics
        try:
            async with asyncio.timeout(limit_s):
                found = await finding
        except (TimeoutError, ReaderBusy, EngineFailed, StoreUnavailable) as failure:
            metrics.grounding.labels(part, "late" if isinstance(failure, TimeoutError) else "failed").inc()
            metrics.grounding_failures.labels(part, reason_of(failure)).inc()
            raise LeftOut(failure) from None
        metrics.grounding.labels(part, "added" if found else "nothing").inc()
        return found


def reason_of(failure: Exception) -> str:
    """One of few words: those of the engines (see `engines/base.py`), `late`, `store` and `readers`."""
    match failure:
        case EngineFailed():
            return failure.reason
        case TimeoutError():
            return "late"
        case StoreUnavailable():
            return "store"
        case _:
            return "readers"


async def budget_for(plan: Plan, prompt: PromptSize, chat: ChatRequest) -> Budget:
    """Memory and search fit the smallest window, so that they rule out no route; files may fill half of the largest."""
    smallest = min(plan.routes, key=lambda route: route.context_tokens)
    largest = max(plan.routes, key=lambda route: route.context_tokens)
    tokens = prompt.at_most
    if tokens > smallest.context_tokens // COUNT_SHARE:
        with suppress(CadenzaError):  # it cannot be counted now: the bound leaves less room
            tokens = await prompt.exact()
    answer_tokens = chat.max_tokens or ANSWER_TOKENS

    def room(route: Route) -> int:
        return output_room(route, tokens) - min(answer_tokens, route.context_tokens // ANSWER_SHARE) - FENCE_TOKENS

    left_tokens = max(0, room(smallest))
    memory = min(MEMORY_TOKENS_MAX, smallest.context_tokens // MEMORY_SHARE, left_tokens)
    search = min(SEARCH_TOKENS_MAX, smallest.context_tokens // SEARCH_SHARE, left_tokens - memory)
    fences_tokens = sum(FENCE_TOKENS + estimate_tokens(file.name) for file in chat.files)
    files = min(room(largest) - memory - search, largest.context_tokens // FILES_SHARE) - fences_tokens
    return Budget(max(0, files), memory, search)
