"""POST /v1/responses: a chat whose request and reply have the forms of OpenAI's Responses API. Nothing is stored.

The body is translated (responses_request.py), `serve_chat` serves it like any other, and the relays of
responses_reply.py write the reply.
"""

from functools import partial

import msgspec

from cadenza import clock
from cadenza.core.chat import new_completion_id
from cadenza.core.errors import CadenzaError, ContextOverflow, InvalidRequest
from cadenza.core.records import AUTO
from cadenza.gateway.answers import ErrorShape, error_object
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.parts.protocols.reading import read_translated
from cadenza.parts.protocols.responses_reply import ResponseEvents, StreamedResponse, WholeResponse
from cadenza.parts.protocols.translation import KEPT, Kept

OWN_NAMES = {"max_tokens": "max_output_tokens", "messages": "input", "response_format": "text.format"}  # by the chat's


async def serve_responses(gateway: Gateway, request: ApiRequest) -> None:
    try:
        translated, chat = await read_translated(gateway, request, "responses")  # 415 413 402 408 400 429
        kept = KEPT.decode(translated.kept)
        request.answers.errors = ErrorShape(error_object, partial(early_failure, chat.model or AUTO, kept))
        request = msgspec.structs.replace(
            request,
            chat=chat,
            chat_bytes=len(translated.chat),
            make_stream_relay=partial(StreamedResponse, kept=kept),
            make_whole_relay=partial(WholeResponse.of, kept),
        )
        await serve_chat(gateway, request)
    except InvalidRequest as error:
        if isinstance(error, ContextOverflow) and request.chat and request.chat.stream:
            request.answers.ping()  # starts the stream: Codex shortens the conversation only if an event says it
        name, colon, rest = error.message.partition(":")
        error.message = OWN_NAMES.get(name, name) + colon + rest
        raise


def early_failure(model: str, kept: Kept, error: CadenzaError, request_id: str) -> bytes:
    """The whole stream, if only pings were sent before the error."""
    now_ms = clock.now_ms()
    events = ResponseEvents(new_completion_id(now_ms), now_ms // 1000, model, kept)
    return events.role() + events.failed(error, request_id)
