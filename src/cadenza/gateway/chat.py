"""The story of one chat request, in one function.

The checks come in a fixed order: key, scope, rate, size, JSON and fields, model, admission, credit. `gw.at` names the
steps at which a test may have the process killed.
"""

import asyncio
import time

import msgspec

from cadenza.core.chat import new_completion_id
from cadenza.core.money import Price
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Principal
from cadenza.core.tokens import is_ample
from cadenza.gateway.auth import authenticate
from cadenza.gateway.billing import allowance, hold_credit, idempotency_digest
from cadenza.gateway.compose import Prompt, compose
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.limits import slot
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, relay_stream, relay_whole
from cadenza.gateway.validate import ChatRequest, check_context, parse_chat
from cadenza.http.exchange import JSON, Exchange, Uploads
from cadenza.routing.catalogue import routes_that_fit
from cadenza.routing.continuation import open_reply
from cadenza.store.ledger import Hold

INLINE_BYTES = 64 * 1024  # a larger body is read off the event loop


async def serve_chat(gw: Gateway, exchange: Exchange) -> None:
    principal = await authenticate(gw, exchange, "inference")  # 401 403 429
    request = await read_chat(exchange, gw.uploads)  # 413 408 400 429
    catalogue = gw.catalogue
    plan = catalogue.plan(request.model, principal)  # 400
    character = catalogue.characters[plan.class_id]
    prompt = Prompt(character, request.texts, exchange.body_bytes)
    if not is_ample(plan, prompt.size_bytes, request.fitted_tokens):
        plan = await fit(plan, prompt)  # 400
    ask = compose(request, character, prompt.most_tokens)
    meter = UsageMeter(prompt)
    hold = quote(exchange, principal, plan, catalogue.prices[plan.class_id], request, prompt)
    gw.at("quoted")
    async with (
        exchange.until_gone(),
        slot(gw.slots, principal.key_id, gw.metrics),  # 429
        hold_credit(gw.writer, exchange, hold, prompt, meter) as money,  # 402 409 429
    ):
        gw.at("held")
        meter.output_limit = output_limit = await money.output_limit(request.max_tokens, plan.max_output_tokens)
        if output_limit < (request.max_tokens or plan.max_output_tokens):
            exchange.more_lines += b"x-cadenza-max-tokens: %d\r\n" % output_limit
            ask = msgspec.structs.replace(ask, max_tokens=output_limit)
        async with open_reply(gw.dispatcher, plan, ask, principal.key_id, prompt) as reply:  # 400 429 502
            gw.at("opened")
            money.reply = reply
            head = ReplyHead(hold.request_id, int(time.time()), plan.class_id, bool(request.tools))
            if request.stream:
                outcome, last = await relay_stream(reply, exchange, head, meter)
            else:
                outcome, last = await relay_whole(reply, head, meter)
            gw.at("relayed")
            await money.settle(outcome)
            gw.at("settled")
            if request.stream:
                exchange.finish_stream(last, is_cut=outcome.fault is not None)
            else:
                exchange.respond(200, last, JSON)
            gw.at("finished")
    gw.note_outcome(exchange, plan, reply.route, outcome)


def quote(
    exchange: Exchange, principal: Principal, plan: Plan, price: Price, request: ChatRequest, prompt: Prompt
) -> Hold:
    """What is held for a request: its prompt at most, and the output that it may have."""
    now_ms = time.time_ns() // 1_000_000
    return Hold(
        request_id=new_completion_id(now_ms),
        account_id=principal.account_id,
        key_id=principal.key_id,
        class_id=plan.class_id,
        prompt_tokens=prompt.most_tokens,
        is_counted=prompt.is_counted,
        allowance_tokens=allowance(request.max_tokens, plan.max_output_tokens),
        price=price,
        stream=request.stream,
        started_at=now_ms,
        shown_id=exchange.request_id,
        idempotency_digest=idempotency_digest(exchange.headers),
    )


async def fit(plan: Plan, prompt: Prompt) -> Plan:
    """The routes that can hold a large prompt, of which it must be known how large it is."""
    if prompt.size_bytes > CONTEXT_TOKENS_MAX:
        check_context(await prompt.count_own())
    return routes_that_fit(plan, await prompt.count())


async def read_chat(exchange: Exchange, uploads: Uploads) -> ChatRequest:
    """What is large is read off the event loop."""
    body = await exchange.body(uploads)
    if len(body) > INLINE_BYTES:
        return await asyncio.to_thread(parse_chat, body)
    return parse_chat(body)
