"""One chat request, from its body to its last byte, in one function.

`serve_api` has already checked key, scope and rate. `serve_chat` checks size, JSON and fields, model, slot and credit,
in this order. Beside each step are the statuses that it can refuse the request with. `at` marks the steps, for the
spans of a traced request, and for a test that kills the process.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest, LargeTexts
from cadenza.core.errors import BodyTimedOut, ContextOverflow, PayloadTooLarge, UnsupportedEncoding
from cadenza.core.grounding import NO_GROUNDING, Grounding
from cadenza.core.price_schedules import PriceSchedule
from cadenza.core.records import OUTPUT_TOKENS_MAX, Plan, Principal, Route
from cadenza.core.sent import sent_bytes
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.gateway.billing import Credit, size_hold
from cadenza.gateway.credit_errors import check_least_credit
from cadenza.gateway.extra_fields import ignored_header, passed_fields, with_passed_fields
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.grounding import GROUNDING_HEADER, read_turned_off, with_able_routes
from cadenza.gateway.large.bodies import LargeBodies
from cadenza.gateway.large.weight import Steps, TooManySteps, is_light
from cadenza.gateway.message_parts import with_files
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay
from cadenza.gateway.request import ApiRequest, RequestRecord
from cadenza.gateway.slots import wait_for_slot
from cadenza.gateway.uploads import UNPAID_BYTES, Upload
from cadenza.gateway.validate import parse_chat
from cadenza.http.body import BodyBudget, BodyTimeout, BodyTooLarge
from cadenza.http.exchange import Exchange, Request
from cadenza.ledger.rules import Hold
from cadenza.routing.catalogue import has_ample_room, routes_that_fit
from cadenza.routing.continuation import RoutedReply
from cadenza.routing.dispatch import Dispatch
from cadenza.routing.prompt import QUICK_BYTES, Character, PromptSize
from cadenza.upstreams.base import Ask

LARGE_BYTES = 512 * 1024  # a larger body is parsed in another process, so that it holds up nobody
STEPS_MAX = 2000  # and so is one with more messages, parts and calls: see `check_messages`
SLICE_BYTES = 256 * 1024  # how much is copied in one turn of the event loop
OWN_BYTES = 2048  # of a request, not counted: the names of fields, the model, limits and switches
NAME_OWN_BYTES = 4  # of a field: the quotes of its name, a colon and a comma
MESSAGE_OWN_BYTES = 256  # of a message: names that a dialect adds, ids that it wants in another form


async def serve_chat(gateway: Gateway, request: ApiRequest) -> None:
    exchange, principal, record, snapshot = request.exchange, request.principal, request.record, request.snapshot
    at, key_id, catalogue, slots = record.at, principal.key_id, snapshot.catalogue, gateway.slots
    chat = (
        request.chat
        or read_chat_now(exchange)
        or await read_chat(  # 415 400 413 402 408 429
            exchange, Upload(gateway.uploads, principal, catalogue.least_nano), gateway.large_bodies, principal, record
        )
    )
    at("read")
    served, media, grounder = catalogue.find(chat.model, principal), chat.media, gateway.grounder  # 400
    if chat.needs or chat.files:
        served = with_able_routes(served, chat, grounder, catalogue)  # 400
        if not grounder.reads_files:  # files go to the model, and are paid for
            media = with_files(media, chat.files)
    plan, grounding, size_bytes = served.plan, NO_GROUNDING, request.chat_bytes or exchange.body.size_bytes
    texts = (
        chat.counted_texts if size_bytes <= QUICK_BYTES else gateway.large_bodies.texts_of(chat, key_id, record.measure)
    )
    prompt = PromptSize(gateway.dispatcher.tokenizer, served.character, texts, size_bytes, media, plan.fields_bytes)
    if chat.extra:
        chat = with_passed_fields(chat, plan, prompt, principal.account_id)  # 400
    if not slots.take(key_id):
        await wait_for_slot(slots, key_id, gateway.observer.metrics)  # 429
        record.note("slot")
    try:
        at("admitted")
        if chat.stream and principal.balance_nano >= catalogue.least_nano:
            gateway.in_flight.pings.start(request.answers)
        wanted = grounder.wanted(chat, principal, exchange.request)
        if wanted:
            grounding = await grounder.ground(request, served, chat, prompt, wanted)  # 409 402 400
        if 2 * prompt.bound > plan.spare_tokens:  # it may be too long for a window
            plan = await fit(plan, served.prices, prompt, chat, principal.balance_nano)  # 400 402
        hold = size_hold(request, served, plan, chat, prompt)
        at("quoted")
        async with Credit(gateway.ledger, record, hold, prompt, plan.context_tokens) as credit:  # 402 409 429
            at("held")
            ask = compose(chat, served.character, prompt, credit, plan, grounding)
            if chat.leading_system or grounding.edits:
                ask = await edit(ask, chat, served.character, grounding)
            if record.upstream_headers:
                ask = msgspec.structs.replace(ask, headers=record.upstream_headers)
            dispatch = Dispatch(plan, ask, prompt, snapshot.upstreams, key_id, record.request_id, record)
            async with RoutedReply(gateway.dispatcher, dispatch, credit.routed) as reply:  # 400 429 502
                at("opened")
                if chat.extra or reply.route.drops:
                    request.answers.added_headers += ignored_header(
                        chat, reply.route, searches=wanted is not None and wanted.search
                    )
                relay = start_relay(request, chat, hold, credit, ask, grounding)
                result = await relay.run(reply)
                at("relayed")
                await credit.settle(result)
                at("settled")
                relay.finish(result)
                at("finished")
    finally:
        slots.leave(key_id)


def read_chat_now(exchange: Exchange) -> ChatRequest | None:
    """The chat, if its body has arrived and is small, as most are."""
    body, headers = exchange.body, exchange.request.headers
    if not body.is_complete or body.unread_bytes > UNPAID_BYTES:
        return None
    if b"content-encoding" in headers or GROUNDING_HEADER in headers:
        check_headers(exchange.request)
    return parse_chat(body.take())


async def read_chat(
    exchange: Exchange, budget: BodyBudget, large_bodies: LargeBodies, principal: Principal, record: RequestRecord
) -> ChatRequest:
    check_headers(exchange.request)
    body = await read_body(exchange, budget)
    if len(body) <= LARGE_BYTES and record.measure(is_light, body):
        with suppress(TooManySteps):
            return record.measure(parse_chat, body, Steps(STEPS_MAX))
    return await large_bodies.parse(principal.account_id, body)


async def read_body(exchange: Exchange, budget: BodyBudget) -> bytes | bytearray:
    """The body of a request; 413 or 408 if it is too large or too slow."""
    try:
        return await exchange.read_body(budget)
    except BodyTooLarge:
        raise PayloadTooLarge from None
    except BodyTimeout:
        raise BodyTimedOut(exchange.body.size_bytes) from None


def check_headers(request: Request) -> None:
    headers = request.headers
    if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
        raise UnsupportedEncoding
    if GROUNDING_HEADER in headers:
        read_turned_off(request)  # refuses an unknown value, with tools too


async def fit(plan: Plan, prices: PriceSchedule, prompt: PromptSize, chat: ChatRequest, balance_nano: int) -> Plan:
    """The plan with the routes whose window is large enough; 400 if there is none.

    Before a long prompt is counted, the free credit must pay for the fewest tokens that it can have: 402.
    """
    room_tokens = chat.max_tokens or OUTPUT_TOKENS_MAX  # if a window has this much room, the prompt need not be counted
    if not (prompt.is_quick or has_ample_room(plan, prompt.exact or prompt.bound, room_tokens)):
        if prompt.at_least > plan.context_tokens:
            raise ContextOverflow(plan.context_tokens, prompt.at_least)
        price = prices.at(clock.now_ms())
        await check_least_credit(balance_nano, price, prompt, chat.max_tokens or OUTPUT_TOKENS_MIN)
    return await routes_that_fit(plan, prompt, room_tokens)


def start_relay(
    request: ApiRequest, chat: ChatRequest, hold: Hold, credit: Credit, ask: Ask, grounding: Grounding
) -> StreamRelay | WholeRelay:
    is_shortened = ask.max_tokens != chat.max_tokens
    limit = b"x-cadenza-max-tokens: %d\r\n" % credit.output_limit if is_shortened else b""
    head = ReplyHead(
        hold.completion_id,
        hold.started_at // 1000,
        hold.class_id,
        hold.price,
        bool(chat.tools),
        limit + grounding.headers,
        grounding,
        chat.wants_cost or request.principal.shows_cost,
    )
    if chat.stream:
        return request.make_stream_relay(request.exchange, request.answers, head, credit.meter)
    return request.make_whole_relay(request.answers, head, credit.meter)


class Paying(Protocol):
    """What composing needs of the held credit: the limit of the answer, and a callback for each route asked."""

    @property
    def output_limit(self) -> int: ...

    def record_attempt(self, route: Route | None, /) -> None: ...


def compose(
    chat: ChatRequest,
    character: Character,
    prompt: PromptSize,
    credit: Paying,
    plan: Plan,
    grounding: Grounding = NO_GROUNDING,
) -> Ask:
    """The ask, with the client's messages as they were sent. Their texts are dropped: a stream would have both."""
    if isinstance(chat.texts, list):
        chat.texts.clear()
    fields = chat.fields if chat.tools else chat.sampling
    own_bytes = OWN_BYTES + MESSAGE_OWN_BYTES * len(chat.messages) + character.size_bytes + plan.fields_bytes
    if chat.extra and (passed := passed_fields(chat.extra, plan)):
        fields, own_bytes = {**fields, **passed}, own_bytes + sum(map(len, passed)) + NAME_OWN_BYTES * len(passed)
    # Less than was asked for, if the account cannot pay for more.
    limit, max_tokens = credit.output_limit, chat.max_tokens
    return Ask(
        messages=[character.message, *chat.messages],
        sampling=chat.sampling,
        max_tokens=limit if limit < (max_tokens or plan.max_output_tokens) else max_tokens,
        stream=chat.stream,
        tools=chat.tools,
        extra=chat.extra,
        prompt_tokens=prompt.exact or prompt.bound,
        is_fitted=max_tokens is None,
        is_large=type(chat.texts) is LargeTexts or grounding.texts_bytes > SLICE_BYTES,
        counted_bytes=sent_bytes(chat.messages, fields) + grounding.texts_bytes + own_bytes,
        on_asked=credit.record_attempt,
    )


async def edit(ask: Ask, chat: ChatRequest, character: Character, grounding: Grounding = NO_GROUNDING) -> Ask:
    """The ask with the edits of grounding, and with the client's leading system messages joined to the character."""
    sent = [*chat.messages]
    for index in grounding.edits:
        sent[index] = msgspec.Raw(await _join(grounding.edited(index, chat.messages[index])))
    messages = [character.message, *sent]
    leading = chat.leading_system
    if not leading:
        return msgspec.structs.replace(ask, messages=messages)
    gap = b"\\n\\n" if chat.system else b""
    joined = await _join([b'{"role":"system","content":"', character.json, gap, chat.system, b'"}'])
    return msgspec.structs.replace(ask, messages=[msgspec.Raw(joined), *sent[leading:]], separate=messages)


async def _join(parts: list[bytes | memoryview]) -> bytes | bytearray:
    """The parts as one. A long part is copied in slices, so that other requests can run in between."""
    if all(len(part) <= SLICE_BYTES for part in parts):
        return b"".join(parts)
    joined = bytearray()
    for part in parts:
        for start in range(0, len(part), SLICE_BYTES):
            joined += memoryview(part)[start : start + SLICE_BYTES]
            await asyncio.sleep(0)
    return joined
