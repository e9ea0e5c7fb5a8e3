"""One request in the simulation: what `gateway.chat` does with key, credit and meter, without HTTP and without text."""

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec

from cadenza.core.errors import CadenzaError
from cadenza.core.records import Outcome, Principal, ReplyResult, RequestStep, Route, Usage
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.billing import Credit, allowance
from cadenza.gateway.request import RequestRecord
from cadenza.ledger.rules import HeldCredit, Hold, Insufficient, Repeated
from cadenza.routing.prompt import Character, PromptSize
from cadenza.store.tables import keys
from cadenza.store.tables.keys import FoundKey
from cadenza.upstreams.base import Piece
from tests.simulation.oracle import TokenPrice, price_at, reply_cost
from tests.simulation.plan import CHARS_PER_TOKEN, PlannedRequest
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

WINDOW_TOKENS = 32_000
OUTPUT_TOKENS = 4_000
ROUTE = Route("acme", "model-1", WINDOW_TOKENS, OUTPUT_TOKENS)
CHARACTER = Character("")
CHUNKS = 5


class CountingByLength(Tokenizer):
    """Counts without a table: a prompt by its characters, an answer by its spaces."""

    is_loaded = True

    def count(self, text: str) -> int:
        return text.count(" ")

    def count_prompt(self, texts: object, enough_tokens: int = 0) -> int:
        return sum(len(text) for text in cast("list[str]", texts)) // CHARS_PER_TOKEN


TOKENIZER = CountingByLength()


class Chat(msgspec.Struct, eq=False):
    """What really happened to one try of a request. The invariants compare the ledger with it."""

    request: PlannedRequest
    completion_id: str
    process: Process
    account_id: str
    key_id: str
    idempotency: str | None
    started_s: float
    prompt_tokens: int  # as we count them
    price: TokenPrice  # of the time at which it begins, by the clock of its process
    is_asked: bool = False
    answer: HeldCredit | Insufficient | Repeated | None = None  # of the ledger
    registered_as: str = ""  # the name of its process when its credit was held
    delivered_tokens: int = 0
    deliveries: list[tuple[float, int]] = []  # when how many tokens were delivered, of a stream
    reported_tokens: int = 0  # of the prompt, by the upstream
    due_nano: int | None = None  # of a reply that was complete at the upstream
    has_left: bool = False  # the client left
    is_whole: bool = False  # the client got the last byte
    status: int = 0
    waited_s: float = 0.0  # for the ledger
    ended_s: float | None = None
    ended_as: str = ""  # the name of its process then
    has_failed: bool = False  # the upstream failed
    started_ms: int = 0  # by the clock of its process
    checked_ms: int = 0  # when its key was checked
    is_thawed: bool = False  # its process may have taken itself for fresh, because its clocks stood still
    is_limited: bool = False  # its key is beyond its rate, or no slot was free
    marked_nano: int = 0  # what a killed process had marked of it, at least


class SimulatedRecord(RequestRecord):
    """The record of a request that has no exchange, on the clocks of its process."""

    def __init__(self, chat: Chat, principal: Principal) -> None:
        self.request_id = f"req_{chat.completion_id}"
        self.completion_id = ""
        self.endpoint = "chat"
        self.principal = principal
        self._route: Route | None = None
        self._steps: tuple[RequestStep, ...] = ()
        self._chat = chat
        self._class_id, self._version = "forte", 1

    def ended_by(self, error: BaseException) -> int:
        return error.status if isinstance(error, CadenzaError) else 499

    def note(self, kind: str, route: Route | None = None, cause: str = "", status: int | None = None) -> None:
        """Its steps are in the history of the simulation."""

    @property
    def was_shut_down(self) -> bool:
        return False

    def outcome(self, status: int | None = None, result: ReplyResult | None = None) -> Outcome:
        chat, now_ms = self._chat, self._chat.process.now_ms()
        return Outcome(
            request_id=self.request_id,
            endpoint="chat",
            status=status or 499,
            duration_ms=0,
            ended_at=now_ms,
            key_id=chat.key_id,
            account_id=chat.account_id,
            completion_id=self.completion_id,
            class_id="forte",
            version=1,
            provider=self._route.provider if self._route else "",
            model=self._route.model if self._route else "",
            usage=result.usage if result and not result.is_free else None,
        )


class Refusal(Exception):
    """The request was refused before any credit was held."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


async def serve(world: "World", process: Process, chat: Chat, digest: bytes) -> None:
    """Serve one chat, as the gateway does. What happened is noted in `chat`."""
    chat.started_ms = chat.checked_ms = process.now_ms()
    chat.price = price_at(world.plan.prices, chat.started_ms)
    found = await process.key_cache.find(digest)
    chat.checked_ms = process.now_ms()
    if found is None or keys.state_of(found.revoked_at, found.expires_at, chat.checked_ms) != "active":
        raise Refusal(401)
    world.accepted(chat)
    if process.limits is None:
        await _serve_admitted(world, chat, found)
    else:
        async with process.limits.admit(chat):
            await _serve_admitted(world, chat, found)


async def _serve_admitted(world: "World", chat: Chat, found: FoundKey) -> None:
    request, process, now_ms = chat.request, chat.process, chat.started_ms
    principal = found.principal
    record = SimulatedRecord(chat, principal)
    text = "x" * request.prompt_chars
    prompt = PromptSize(TOKENIZER, CHARACTER, lambda: [text], request.prompt_chars)
    allowance_tokens = allowance(request.max_tokens, OUTPUT_TOKENS)
    hold = Hold(
        completion_id=chat.completion_id,
        request_id=record.request_id,
        account_id=chat.account_id,
        key_id=chat.key_id,
        class_id="forte",
        prompt_tokens=prompt.to_hold(WINDOW_TOKENS),
        is_counted=prompt.exact is not None,
        allowance_tokens=allowance_tokens,
        price=world.prices.at(now_ms),
        stream=request.is_stream,
        started_at=now_ms,
        idempotency_digest=chat.idempotency.encode() if chat.idempotency else None,
        is_capped=principal.is_capped,
        version=1,
        extra_tokens=0 if request.max_tokens else OUTPUT_TOKENS - allowance_tokens,
    )
    began_s = process.loop.time()
    async with Credit(process.ledger, record, hold, prompt, WINDOW_TOKENS) as credit:
        chat.waited_s = process.loop.time() - began_s
        result = await _relay(world, chat, credit)
        tokens = min(request.output_tokens, credit.output_limit)
        chat.due_nano = reply_cost(chat.price, request.upstream, request.prompt_chars, tokens, credit.output_limit)
        began_s = process.loop.time()
        await credit.settle(result)
        chat.waited_s = max(chat.waited_s, process.loop.time() - began_s)
    if result.fault:
        raise Refusal(502)
    world.whole(chat)


async def _relay(world: "World", chat: Chat, credit: Credit) -> ReplyResult:
    """The upstream answers, in a few chunks, and reports what it counted."""
    request, meter = chat.request, credit.meter
    pause_s = request.takes_s / CHUNKS
    credit.record_attempt(ROUTE)
    world.asked(chat)
    await asyncio.sleep(pause_s)
    if request.upstream == "fails":
        chat.has_failed = True
        credit.record_attempt(None)
        raise Refusal(502)
    credit.routed(ROUTE)
    tokens = min(request.output_tokens, credit.output_limit)
    chunk_tokens = -(-tokens // CHUNKS) if request.is_stream else tokens
    while chat.delivered_tokens < tokens:
        if request.upstream == "dies" and (not request.is_stream or chat.delivered_tokens >= tokens // 2):
            chat.has_failed = True
            await meter.count()
            raise Refusal(502)
        part = min(chunk_tokens, tokens - chat.delivered_tokens)
        chat.delivered_tokens += part
        if request.is_stream:
            meter.deliver(" w" * part)
            chat.deliveries.append((world.scheduler.now_s, chat.delivered_tokens))
        await asyncio.sleep(pause_s)
    meter.take(Piece(finish_reason="stop", usage=_reported(chat, tokens)))
    if meter.needs_count:
        await (meter.count() if request.is_stream else meter.count_whole(" w" * tokens))
    return meter.result()


def _reported(chat: Chat, tokens: int) -> Usage | None:
    prompt = chat.prompt_tokens
    match chat.request.upstream:
        case "uncounted":
            return None
        case "lies":
            usage = Usage(prompt * 1000, tokens * 10)
        case "counts more":
            usage = Usage(2 * prompt, tokens)
        case "cached":
            usage = Usage(prompt, tokens, cached_tokens=prompt // 2)
        case _:
            usage = Usage(prompt, tokens)
    chat.reported_tokens = usage.prompt_tokens
    return usage
