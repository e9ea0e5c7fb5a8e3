"""Reads a request of another protocol: its body becomes a chat body, which is parsed and checked like any other.

What is too heavy for the event loop is translated where large bodies are parsed.
"""

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.gateway.chat import LARGE_BYTES, STEPS_MAX, check_headers, read_body
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.large.bodies import LargeBodies
from cadenza.gateway.large.weight import TooManySteps, is_light
from cadenza.gateway.protocols.translation import Kept, Translated
from cadenza.gateway.protocols.translators import TRANSLATORS
from cadenza.gateway.request import ApiRequest
from cadenza.gateway.uploads import Upload
from cadenza.gateway.validate import parse_chat

KEPT = msgspec.json.Decoder(Kept)


async def read_translated(gateway: Gateway, request: ApiRequest, protocol: str) -> tuple[ApiRequest, Kept]:
    """The request with its chat, and what the translator kept for the reply."""
    principal, catalogue = request.principal, request.snapshot.catalogue
    check_headers(request.exchange.request)  # 415 400
    upload = Upload(gateway.uploads, principal, catalogue.least_nano)
    body = await read_body(request.exchange, upload)  # 413 402 408 429
    translated, chat = await _translate(gateway.large_bodies, principal.account_id, protocol, body)  # 400 429
    if chat.model and chat.model not in catalogue.ids:
        model = catalogue.aliases.with_defaults().resolve(chat.model, catalogue.ids, catalogue.preferred)
        chat = msgspec.structs.replace(chat, model=model)
    return msgspec.structs.replace(request, chat=chat, chat_bytes=len(translated.chat)), KEPT.decode(translated.kept)


async def _translate(
    large_bodies: LargeBodies, account_id: str, protocol: str, body: bytes | bytearray
) -> tuple[Translated, ChatRequest]:
    if len(body) <= LARGE_BYTES and is_light(body):
        try:
            translated = TRANSLATORS[protocol](body, STEPS_MAX)
            return translated, parse_chat(bytes(translated.chat), STEPS_MAX)
        except TooManySteps:
            pass
    translated = await large_bodies.translate(account_id, protocol, body)
    return translated, await large_bodies.parse(account_id, translated.chat)
