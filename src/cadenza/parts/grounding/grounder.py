"""What the gateway asks of this part: which parts of grounding apply to a request, and that they are added to it."""

from contextlib import nullcontext
from functools import partial

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest
from cadenza.core.grounding import Grounding
from cadenza.core.price_schedules import PriceSchedule
from cadenza.core.records import Principal
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.fleet.shared import Rates
from cadenza.gateway.auth import presented_key
from cadenza.gateway.credit_errors import check_least_credit, check_not_repeated
from cadenza.gateway.grounding import GroundingOffer, Wanted, read_turned_off
from cadenza.gateway.request import ApiRequest
from cadenza.http.exchange import Request
from cadenza.ledger.cap_rows import find_cap
from cadenza.ledger.writer import LedgerWriter
from cadenza.parts.grounding.charges import Charges
from cadenza.parts.grounding.gather import Affordable, Gatherer, GroundingRequest
from cadenza.routing.catalogue import ServedClass
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store


class ChatGrounder:
    """Adds reference material to the chats of one process. A reload that changes `[grounding]` makes another one."""

    files_note = " Attachments are turned off here."

    def __init__(
        self, gatherer: Gatherer, ledger: LedgerWriter, rates: Rates, *, files: bool = True, memory: bool = True
    ) -> None:
        self.reads_files = files
        self._memory = memory
        self._search = gatherer.search is not None
        self._gatherer = gatherer
        self._ledger = ledger
        self._rates = rates

    def wanted(self, chat: ChatRequest, principal: Principal, request: Request, /) -> Wanted | None:
        """What applies to this request: for most, and for all with tools, nothing."""
        if chat.tools:
            return None
        memory, search = principal.has_notes and self._memory, principal.may_search and self._search
        if memory or search:
            turned_off = read_turned_off(request)
            memory, search = memory and "memory" not in turned_off, search and "search" not in turned_off
        files = bool(chat.files) and self.reads_files
        return Wanted(files, memory, search) if files or memory or search else None

    async def ground(
        self, request: ApiRequest, served: ServedClass, chat: ChatRequest, prompt: PromptSize, wanted: Wanted, /
    ) -> Grounding:
        """Gather what is wanted, charge what it costs, and add it to the prompt's size."""
        gatherer, principal = self._gatherer, request.principal
        output_tokens = chat.max_tokens or OUTPUT_TOKENS_MIN
        affordable = await find_affordable(gatherer.store, request, served.prices, prompt, output_tokens)
        secret = charge_secret(request.exchange.request.headers)
        charges = Charges(self._ledger, self._rates, principal, request.record.request_id, secret)
        terms = gatherer.search_terms()
        charge = partial(charges.search, terms) if terms else nullcontext
        to_ground = GroundingRequest(chat, served.plan, prompt, principal, affordable, charge, request.record.gathered)
        grounding = await gatherer.gather(to_ground, wanted)
        if charges.charged_nano:
            grounding = msgspec.structs.replace(grounding, charged_nano=charges.charged_nano)
        if grounding.headers:
            request.record.note("grounded", cause=grounding.headers.decode().partition(": ")[2].strip())
        prompt.add_texts(grounding.texts, grounding.texts_bytes)
        return grounding

    def offer(self) -> GroundingOffer:
        measure = self._gatherer.measure_file if self.reads_files else None
        return GroundingOffer(self._memory, self._gatherer.search_terms(), measure)

    async def stop(self) -> None:
        await self._gatherer.stop()


async def find_affordable(
    store: Store, request: ApiRequest, prices: PriceSchedule, prompt: PromptSize, output_tokens: int
) -> Affordable:
    """What reference material can be paid with. No work is done for a request that repeats another: 409.

    Account and cap must be able to pay for an answer of so many tokens, or a short one, without it: 402.
    """
    principal, headers = request.principal, request.exchange.request.headers
    now_ms, free_nano = clock.now_ms(), principal.balance_nano
    price = prices.at(now_ms)
    await check_not_repeated(store, principal.account_id, headers, now_ms)
    await check_least_credit(free_nano, price, prompt, output_tokens)
    if principal.is_capped and (cap := await find_cap(store, principal.key_id, now_ms)):
        await check_least_credit(cap.left_nano, price, prompt, output_tokens, cap)
        free_nano = min(free_nano, cap.left_nano)
    return Affordable(free_nano, price)


def charge_secret(headers: dict[bytes, bytes]) -> bytes | None:
    """Identifies a repeated request: its API key and its idempotency key. The store has only hashes of both."""
    key = headers.get(b"idempotency-key")
    return None if key is None else presented_key(headers) + b"\0" + key
