"""Reads a request of another protocol: its body becomes a chat body, which is parsed and checked like any other.

What is too heavy for the event loop is translated where large bodies are parsed.
"""

import asyncio
import math
from contextlib import suppress

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.gateway.chat import LARGE_BYTES, STEPS_MAX, check_headers, read_body
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.large.bodies import LargeBodies
from cadenza.gateway.large.tasks import Translated
from cadenza.gateway.large.weight import Steps, TooManySteps, is_light
from cadenza.gateway.request import ApiRequest
from cadenza.gateway.uploads import UNPAID_BYTES, Upload
from cadenza.gateway.validate import parse_chat
from cadenza.parts.protocols.translators import TRANSLATORS


async def read_translated(gateway: Gateway, request: ApiRequest, protocol: str) -> tuple[Translated, ChatRequest]:
    principal, catalogue, arriving = request.principal, request.snapshot.catalogue, request.exchange.body
    check_headers(request.exchange.request)  # 415 400
    if arriving.is_complete and arriving.unread_bytes <= UNPAID_BYTES:  # as most are
        body: bytes | bytearray = arriving.take()
    else:
        upload = Upload(gateway.uploads, principal, catalogue.least_nano)
        body = await read_body(request.exchange, upload)  # 413 402 408 429
    translated, chat = await _translate(gateway.large_bodies, request, protocol, body)  # 400 429
    if chat.model and chat.model not in catalogue.ids:
        model = catalogue.aliases.with_defaults().resolve(chat.model, catalogue.ids, catalogue.preferred)
        chat = msgspec.structs.replace(chat, model=model)
    return translated, chat


async def _translate(
    large_bodies: LargeBodies, request: ApiRequest, protocol: str, body: bytes | bytearray
) -> tuple[Translated, ChatRequest]:
    translate, account_id, measure = TRANSLATORS[protocol], request.principal.account_id, request.record.measure
    if len(body) <= UNPAID_BYTES:
        translated = translate(body, math.inf)
        return translated, parse_chat(bytes(translated.chat))
    if len(body) <= LARGE_BYTES and measure(is_light, body):
        with suppress(TooManySteps):
            translated = measure(translate, body, STEPS_MAX)
            await asyncio.sleep(0)  # others have their turn between the two halves of the work
            return translated, measure(parse_chat, bytes(translated.chat), Steps(STEPS_MAX))
    translated = await large_bodies.translate(account_id, protocol, body)
    return translated, await large_bodies.parse(account_id, translated.chat)
