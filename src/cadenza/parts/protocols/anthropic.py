"""Anthropic's Messages API: POST /v1/messages, a chat request in another form, and POST /v1/messages/count_tokens.

The body is translated (anthropic_request.py), `serve_chat` serves it like any other, and the relays of
anthropic_reply.py write the reply as Anthropic does.
"""

from functools import partial
from typing import Any

import msgspec

from cadenza.core.errors import CadenzaError, ContextOverflow
from cadenza.gateway.answers import ErrorShape
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.chunks import encode
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.parts.protocols.anthropic_reply import EVENT, MessageStream, WholeMessage
from cadenza.parts.protocols.anthropic_request import NO_THREADS
from cadenza.parts.protocols.reading import read_translated
from cadenza.parts.protocols.translation import KEPT
from cadenza.routing.prompt import QUICK_BYTES, PromptSize

COUNTED_BYTES = 128 * 1024  # a longer prompt is estimated by its length: its count would be 30 ms of work, for free
ERROR_TYPES = {402: "billing_error", 404: "not_found_error", 413: "request_too_large"}  # by status, where not ours
UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}  # so the SDK sends all messages


async def serve_messages(gateway: Gateway, request: ApiRequest) -> None:
    name_request(request)
    translated, chat = await read_translated(gateway, request, "messages")  # 415 400 413 402 408 429
    kept = KEPT.decode(translated.kept)
    request = msgspec.structs.replace(
        request,
        chat=chat,
        chat_bytes=len(translated.chat),
        make_stream_relay=partial(MessageStream, kept=kept),
        make_whole_relay=partial(WholeMessage, kept=kept),
    )
    await serve_chat(gateway, request)


async def count_tokens(gateway: Gateway, request: ApiRequest) -> None:
    """The tokens of a prompt by our own count, with the character of its class. It is free, and asks no model.

    So what it takes is bounded: of an account, one long prompt is counted at a time, if it could pay for an answer.
    Others are estimated by their length, and so is one above COUNTED_BYTES.
    """
    name_request(request)
    translated, chat = await read_translated(gateway, request, "count_tokens")  # 415 400 413 402 408 429
    principal, size_bytes, counting = request.principal, len(translated.chat), gateway.large_bodies.counting
    served = request.snapshot.catalogue.find(chat.model, principal)  # 400
    is_quick = size_bytes <= QUICK_BYTES
    texts_of, measure = gateway.large_bodies.texts_of, request.record.measure
    texts = chat.counted_texts if is_quick else texts_of(chat, principal.key_id, measure)
    tokenizer, fields_bytes = gateway.dispatcher.tokenizer, served.plan.fields_bytes
    prompt = PromptSize(tokenizer, served.character, texts, size_bytes, chat.media, fields_bytes)
    can_pay = principal.balance_nano >= request.snapshot.catalogue.least_nano
    if is_quick:
        tokens = await prompt.count()
    elif size_bytes > COUNTED_BYTES or not can_pay or principal.account_id in counting:
        tokens = prompt.about
    else:
        counting.add(principal.account_id)
        try:
            tokens = await prompt.count()
        finally:
            counting.remove(principal.account_id)
    request.answers.send_json(encode({"input_tokens": tokens}))
    gateway.unpaid.charge(principal.account_id, request.record.read_cpu_s)


def name_request(request: ApiRequest) -> None:
    """Anthropic's clients read the id of a request in a header of this name."""
    request.answers.added_headers += f"request-id: {request.record.request_id}\r\n".encode()


def error_body(error: CadenzaError, request_id: str) -> bytes:
    type_, message = ERROR_TYPES.get(error.status, error.type), error.message
    if isinstance(error, ContextOverflow):  # Claude Code looks for these words, and shortens the conversation
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.window_tokens} maximum"
    shown: dict[str, Any] = {"type": type_, "message": message}
    if message == NO_THREADS:
        shown["details"] = UNTHREADED
    return encode({"type": "error", "error": shown, "request_id": request_id})


def error_event(error: CadenzaError, request_id: str) -> bytes:
    """The newline before it ends an event that may be unfinished."""
    return b"\n" + EVENT % (b"error", error_body(error, request_id))


MESSAGE_ERRORS = ErrorShape(error_body, error_event)
