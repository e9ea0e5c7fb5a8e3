"""The story of one chat request, in one function.

The checks come in a fixed order: key, scope, rate, size, JSON and fields, model, admission, credit. `gw.at` names the
steps at which a test may have the process killed.
"""

import asyncio
import time

import msgspec

from cadenza.core.chat import new_completion_id
from cadenza.core.money import Price
from cadenza.core.records import Plan, Principal
from cadenza.core.tokens import count_prompt
from cadenza.gateway.auth import authenticate
from cadenza.gateway.billing import allowance, hold_credit, idempotency_digest
from cadenza.gateway.call import JSON, Call, Uploads
from cadenza.gateway.classes import holding
from cadenza.gateway.compose import compose
from cadenza.gateway.context import Gateway
from cadenza.gateway.continuing import open_reply
from cadenza.gateway.limits import slot
from cadenza.gateway.relay import ReplyHead, relay_stream, relay_whole
from cadenza.gateway.tally import Tally
from cadenza.gateway.validate import ChatRequest, check_context, parse_chat
from cadenza.store.ledger import Hold

INLINE_BYTES = 64 * 1024  # a larger body is read and counted off the event loop


async def serve_chat(gw: Gateway, call: Call) -> None:
    principal = await authenticate(gw, call, "inference")  # 401 403 429
    request, counted = await read_chat(call, gw.uploads)  # 413 408 400 429
    catalogue = gw.catalogue
    plan = catalogue.plan(request.model, principal)  # 400
    character = catalogue.characters[plan.class_id]
    prompt_tokens = character.tokens + counted
    plan = holding(plan, prompt_tokens)  # 400
    ask = compose(request, character, prompt_tokens)
    tally = Tally(prompt_tokens, ask.prompt_bytes())
    hold = quote(call, principal, plan, catalogue.prices[plan.class_id], request, tally)
    gw.at("quoted")
    async with (
        call.until_gone(),
        slot(gw.slots, principal.key_id, gw.metrics),  # 429
        hold_credit(gw.writer, call, hold, tally) as money,  # 402 409 429
    ):
        gw.at("held")
        tally.output_limit = output_limit = money.output_limit(request.max_tokens, plan.max_output_tokens)
        if is_fitted := output_limit < (request.max_tokens or plan.max_output_tokens):
            call.more_headers.append((b"x-cadenza-max-tokens", b"%d" % output_limit))
        ask = msgspec.structs.replace(ask, max_tokens=output_limit if is_fitted else request.max_tokens)
        async with open_reply(gw.dispatcher, plan, ask, principal.key_id) as reply:  # 400 429 502
            gw.at("opened")
            money.reply = reply
            head = ReplyHead(hold.request_id, int(time.time()), plan.class_id, bool(request.tools))
            if request.stream:
                outcome, last = await relay_stream(reply, call, head, tally)
            else:
                outcome, last = await relay_whole(reply, head, tally)
            gw.at("relayed")
            await money.settle(outcome)
            gw.at("settled")
            if request.stream:
                await call.finish_stream(last, is_cut=outcome.fault is not None)
            else:
                await call.respond(200, last, JSON)
            gw.at("finished")
    gw.note_outcome(call, plan, reply.route, outcome)


def quote(call: Call, principal: Principal, plan: Plan, price: Price, request: ChatRequest, tally: Tally) -> Hold:
    """What is held for a request: its prompt by our own count, and the output that it may have."""
    return Hold(
        request_id=new_completion_id(),
        account_id=principal.account_id,
        key_id=principal.key_id,
        class_id=plan.class_id,
        prompt_tokens=tally.prompt_tokens,
        allowance_tokens=allowance(request.max_tokens, plan.max_output_tokens),
        price=price,
        stream=request.stream,
        started_at=time.time_ns() // 1_000_000,
        shown_id=call.request_id,
        idempotency_digest=idempotency_digest(call.headers),
    )


async def read_chat(call: Call, uploads: Uploads) -> tuple[ChatRequest, int]:
    """The request and the tokens of its prompt. What is large is read and counted off the event loop."""
    body = await call.body(uploads)
    if len(body) > INLINE_BYTES:
        return await asyncio.to_thread(_read, body)
    return _read(body)


def _read(body: bytes) -> tuple[ChatRequest, int]:
    request = parse_chat(body)
    counted = count_prompt(request.texts)
    check_context(counted)
    return request, counted
