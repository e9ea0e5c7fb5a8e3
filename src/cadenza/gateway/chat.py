"""The story of one chat request, in one function.

The checks come in a fixed order: key, scope, size, JSON and fields, model. A rate ticket belongs right after the key;
a slot and a hold on the account's credit belong around the open reply, and the charge before its last byte.
"""

import asyncio

from cadenza.core.records import CONTEXT_TOKENS_MAX
from cadenza.gateway.auth import authenticate
from cadenza.gateway.call import JSON, Call
from cadenza.gateway.compose import compose
from cadenza.gateway.context import Gateway
from cadenza.gateway.relay import Tally, relay_stream, relay_whole
from cadenza.gateway.validate import ChatRequest, check_context, parse_chat


async def serve_chat(gw: Gateway, call: Call) -> None:
    principal = await authenticate(call, "inference", gw.db)  # 401 403 429
    gw.note_use(call, principal)
    request = await read_chat(call)  # 413 408 400
    plan = gw.catalogue.plan(request.model, principal)  # 400
    character = gw.characters[plan.class_id]
    ask = compose(request, character)
    tally = Tally([character.text, *request.texts])
    async with call.until_gone(), gw.dispatcher.open_first(plan, ask) as (route, reply):  # 400 429 502
        gw.note_first_byte(call, plan)
        if request.stream:
            outcome, last = await relay_stream(reply, call, plan.class_id, tally)
            await call.finish_stream(last, is_cut=outcome.fault is not None)
        else:
            outcome, last = await relay_whole(reply, plan.class_id, tally)
            await call.respond(200, last, JSON)
    gw.note_outcome(call, plan, route, outcome)


async def read_chat(call: Call) -> ChatRequest:
    body = await call.body()
    request = parse_chat(body)
    if len(body) > CONTEXT_TOKENS_MAX:  # a token is at least a byte: a smaller body needs no count
        await asyncio.to_thread(check_context, request.texts)
    return request
