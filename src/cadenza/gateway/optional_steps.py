"""The steps of a chat request that a plain text skips: routes that take its parts, and reference material."""

from contextlib import nullcontext
from functools import partial

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest
from cadenza.core.prices import PriceSchedule
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.gateway.auth import presented_key
from cadenza.gateway.credit_errors import check_least_credit, check_not_repeated
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.messages import CUSTOM_TOOLS
from cadenza.gateway.request import ApiRequest
from cadenza.ledger.cap_rows import find_cap
from cadenza.parts.grounding.charges import Charges, charge_search
from cadenza.parts.grounding.gather import Affordable, Grounder, GroundingRequest
from cadenza.parts.grounding.material import Grounding
from cadenza.parts.grounding.wanted import Wanted
from cadenza.routing.catalogue import Catalogue, ServedClass, routes_that_take
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store


def with_able_routes(served: ServedClass, chat: ChatRequest, grounder: Grounder, catalogue: Catalogue) -> ServedClass:
    """The class with only those of its routes that take the parts and tools of the request; 400 if there is none."""
    needs, note = chat.needs, ""
    if chat.files and not grounder.settings.attachments:
        needs, note = needs | {"files"}, " Attachments are turned off here."
    elif chat.tools and needs != CUSTOM_TOOLS:
        note = " Grounding does not apply with tools: such parts go to the model unchanged."
    plan = routes_that_take(served.plan, needs, catalogue.able_classes(needs), note)
    return msgspec.structs.replace(served, plan=plan)


async def ground(
    gateway: Gateway, request: ApiRequest, served: ServedClass, chat: ChatRequest, prompt: PromptSize, wanted: Wanted
) -> Grounding:
    """Gather the reference material that the request wants, charge what it costs, and add it to the prompt's size."""
    grounder, principal = gateway.grounder, request.principal
    output_tokens = chat.max_tokens or OUTPUT_TOKENS_MIN
    affordable = await find_affordable(grounder.store, request, served.prices, prompt, output_tokens)
    secret = charge_secret(request.exchange.request.headers)
    charges = Charges(gateway.ledger, principal, request.record.request_id, secret)
    terms = grounder.search_terms()
    charge = partial(charge_search, charges, gateway.rates, principal.account_id, terms) if terms else nullcontext
    to_ground = GroundingRequest(chat, served.plan, prompt, principal, affordable, charge, request.record.gathered)
    grounding = await grounder.ground(to_ground, wanted)
    if charges.charged_nano:
        grounding = msgspec.structs.replace(grounding, charged_nano=charges.charged_nano)
    if grounding.headers:
        request.record.note("grounded", cause=grounding.headers.decode().partition(": ")[2].strip())
    prompt.add_texts(grounding.texts, grounding.texts_bytes)
    return grounding


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
