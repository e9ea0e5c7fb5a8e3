"""One chat request, from its body to its last byte, in one function.

`serve_api` has already checked key, scope and rate. `serve_chat` checks size, JSON and fields, model, slot and credit,
in this order. Beside each step are the statuses that it can refuse the request with. `at` marks the steps at which a
test can kill the process.
"""

import time
from contextlib import nullcontext

import msgspec

from cadenza.core.chat import ChatRequest, LargeTexts, Media
from cadenza.core.errors import BodyTimedOut, PayloadTooLarge, UnsupportedEncoding
from cadenza.core.money import Price
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Principal
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, Tokenizer
from cadenza.gateway.auth import presented_key
from cadenza.gateway.billing import (
    Credit,
    check_least_credit,
    check_not_repeated,
    hold_credit,
    size_hold,
)
from cadenza.gateway.compose import compose, is_shortened
from cadenza.gateway.extra_fields import count_passed_fields, ignored_header
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.heartbeat import Heartbeat
from cadenza.gateway.large.bodies import LargeBodies
from cadenza.gateway.parts import with_files
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay
from cadenza.gateway.request import ApiRequest
from cadenza.gateway.slots import slot
from cadenza.gateway.uploads import Upload
from cadenza.gateway.validate import CUSTOM_TOOLS, check_context, parse_chat
from cadenza.grounding.additions import NO_GROUNDING, Grounding
from cadenza.grounding.charges import Charges, SearchCharge
from cadenza.grounding.model_decision import ModelDecision
from cadenza.grounding.search.web_search import ChargeSearch, DecideByModel
from cadenza.grounding.stage import NOTHING_WANTED, Affordable, Grounder, GroundingRequest
from cadenza.grounding.switch import SWITCH, is_turned_off
from cadenza.http.body import BodyBudget, BodyTimeout, BodyTooLarge
from cadenza.http.exchange import Exchange
from cadenza.ledger.cap_rows import find_cap
from cadenza.ledger.rules import Hold
from cadenza.routing.catalogue import (
    Catalogue,
    ServedClass,
    check_largest_window,
    has_ample_room,
    routes_that_fit,
    routes_that_take,
)
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import Dispatch
from cadenza.routing.prompt import PromptSize
from cadenza.store.store import Store

INLINE_BYTES = 64 * 1024  # a larger body is parsed in another process


async def serve_chat(gateway: Gateway, request: ApiRequest) -> None:
    snapshot, grounder, principal, at = gateway.snapshot, gateway.grounder, request.principal, gateway.observer.at
    tokenizer = gateway.dispatcher.tokenizer
    upload, key_id = Upload(gateway.uploads, principal, snapshot.catalogue.least_nano), principal.key_id
    chat = await read_chat(request.exchange, upload, gateway.large_bodies, principal)  # 415 413 402 408 429 400
    served, media = snapshot.catalogue.find(chat.model, principal), chat.media  # 400
    if chat.needs or chat.files:
        served = with_able_routes(served, chat, grounder, snapshot.catalogue)  # 400
        media = media_for_model(chat, grounder)
    prompt = size_prompt(tokenizer, served, chat, request.exchange.body.size_bytes, media)
    if chat.extra:
        count_passed_fields(chat.extra, served.plan, prompt)  # 400
    wants_pings = chat.stream and upload.is_solvent
    heartbeat = Heartbeat(request.exchange, request.answers, gateway.ping_s if wants_pings else None)
    async with slot(gateway.slots, key_id, gateway.observer.metrics), heartbeat:  # 429
        grounding, wanted = NO_GROUNDING, grounder.wanted(chat, principal, request.exchange.request)
        if wanted is not NOTHING_WANTED:
            means = await find_means(grounder.store, request, served.price, prompt)  # 409 402
            secret = charge_secret(request.exchange.request.headers)
            charges = Charges(gateway.ledger, principal, request.record.request_id, secret)
            charge, decide = charge_and_decide(gateway, request, served, charges)
            sought = GroundingRequest(chat, served.plan, prompt, principal, means, charge, decide)
            grounding = await grounder.ground(sought, wanted)  # 400
            if charges.charged_nano:
                grounding = msgspec.structs.replace(grounding, charged_nano=charges.charged_nano)
            prompt.add_texts(grounding.texts, grounding.texts_bytes)
        plan = await fit(served.plan, served.price, prompt, chat, principal.balance_nano)  # 400 402
        quote = size_hold(request, plan, served.price, chat, prompt)
        at("quoted")
        async with hold_credit(gateway.ledger, tokenizer, request.record, quote) as credit:  # 402 409 429
            at("held")
            ask = await compose(chat, served.character, prompt, credit, plan, grounding)
            record = request.record
            dispatch = Dispatch(plan, ask, prompt, snapshot.upstreams, key_id, record.request_id, record.failed)
            async with open_reply(gateway.dispatcher, dispatch, credit.routed) as reply:  # 400 429 502
                at("opened")
                if chat.extra or reply.route.drops:
                    request.answers.add_headers(ignored_header(chat.extra, chat.sampling, reply.route))
                relay = start_relay(request, chat, quote.hold, credit, plan, grounding)
                result = await relay.run(reply)
                at("relayed")
                await credit.settle(result)
                at("settled")
                relay.finish(result)
                at("finished")


async def read_chat(
    exchange: Exchange, budget: BodyBudget, large_bodies: LargeBodies, principal: Principal
) -> ChatRequest:
    headers = exchange.request.headers
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedEncoding
    if SWITCH in headers:
        is_turned_off(exchange.request)  # refuses an unknown value, with tools too
    try:
        body = await exchange.read_body(budget)
    except BodyTooLarge:
        raise PayloadTooLarge from None
    except BodyTimeout:
        raise BodyTimedOut(exchange.body.size_bytes) from None
    if len(body) > INLINE_BYTES:
        return await large_bodies.parse(principal.account_id, body)
    return parse_chat(body)


def with_able_routes(served: ServedClass, chat: ChatRequest, grounder: Grounder, catalogue: Catalogue) -> ServedClass:
    """The class with those of its routes that take what the request has beside text; 400 if there is none."""
    needs, note = chat.needs, ""
    if chat.files and not grounder.settings.attachments:
        needs, note = needs | {"files"}, " Attachments are turned off here."
    elif chat.tools and needs != CUSTOM_TOOLS:
        note = " Grounding does not apply with tools: such parts go to the model unchanged."
    plan = routes_that_take(served.plan, needs, catalogue.able_classes(needs), note)
    return msgspec.structs.replace(served, plan=plan)


def media_for_model(chat: ChatRequest, grounder: Grounder) -> Media:
    """What the model gets beside text. Files that are not read here are a part of it, and paid for."""
    return chat.media if grounder.settings.attachments else with_files(chat.media, chat.files)


def size_prompt(
    tokenizer: Tokenizer, served: ServedClass, chat: ChatRequest, body_bytes: int, media: Media
) -> PromptSize:
    """The size of everything that goes upstream. A large body is counted where it was parsed."""
    texts = chat.texts if isinstance(chat.texts, LargeTexts) else chat.counted_texts
    return PromptSize(tokenizer, served.character, texts, body_bytes, media, served.plan.fields_bytes)


async def find_means(store: Store, request: ApiRequest, price: Price, prompt: PromptSize) -> Affordable:
    """What reference material can be paid with. No work is done for a request that repeats another: 409.

    Account and cap must be able to pay for an answer without it: 402.
    """
    principal, headers = request.principal, request.exchange.request.headers
    now_ms, free_nano = time.time_ns() // 1_000_000, principal.balance_nano
    await check_not_repeated(store, principal.account_id, headers, now_ms)
    await check_least_credit(free_nano, price, prompt, OUTPUT_TOKENS_MIN)
    if principal.is_capped and (cap := await find_cap(store, principal.key_id, now_ms)):
        await check_least_credit(cap.left_nano, price, prompt, OUTPUT_TOKENS_MIN, cap)
        free_nano = min(free_nano, cap.left_nano)
    return Affordable(free_nano, price)


def charge_secret(headers: dict[bytes, bytes]) -> bytes | None:
    """What a repeated request has in common with the first one: both keys, of which the store has only hashes."""
    key = headers.get(b"idempotency-key")
    return None if key is None else presented_key(headers) + b"\0" + key


def charge_and_decide(
    gateway: Gateway, request: ApiRequest, served: ServedClass, charges: Charges
) -> tuple[ChargeSearch, DecideByModel | None]:
    """What charges a web search of this request, and what asks a model whether one is needed."""
    decide = None
    if served.decides_by_model:
        decide = ModelDecision(gateway.dispatcher, gateway.snapshot, served, charges)
    terms = gateway.grounder.search_terms()
    if terms is None:
        return nullcontext, decide
    return SearchCharge(charges, gateway.rates, request.principal.account_id, terms), decide


async def fit(plan: Plan, price: Price, prompt: PromptSize, chat: ChatRequest, balance_nano: int) -> Plan:
    """The plan with the routes whose window is large enough; 400 if there is none.

    Before a long prompt is counted, the free credit must pay for the fewest tokens that it can have: 402.
    """
    if not prompt.is_quick:
        is_long = prompt.size_bytes > CONTEXT_TOKENS_MAX
        if is_long or not has_ample_room(plan, prompt.at_most, chat.room_tokens):
            check_largest_window(plan, prompt.at_least)
            await check_least_credit(balance_nano, price, prompt, chat.max_tokens or OUTPUT_TOKENS_MIN)
        if is_long:
            check_context(await prompt.exact_of_client())
    return await routes_that_fit(plan, prompt, chat.room_tokens)


def start_relay(
    request: ApiRequest, chat: ChatRequest, hold: Hold, credit: Credit, plan: Plan, grounding: Grounding
) -> StreamRelay | WholeRelay:
    is_limited = is_shortened(chat, credit.output_limit, plan)
    limit = b"x-cadenza-max-tokens: %d\r\n" % credit.output_limit if is_limited else b""
    head = ReplyHead(
        completion_id=hold.completion_id,
        created=hold.started_at // 1000,
        class_id=hold.class_id,
        price=hold.price,
        has_tools=bool(chat.tools),
        headers=limit + grounding.headers,
        sources=grounding.sources,
        fence_ids=grounding.fence_ids,
        grounding_nano=grounding.charged_nano,
    )
    if chat.stream:
        return request.make_stream_relay(request.exchange, request.answers, head, credit.meter)
    return WholeRelay(request.answers, head, credit.meter)
