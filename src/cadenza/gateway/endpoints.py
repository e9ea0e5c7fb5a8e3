"""What an endpoint is, models and usage, and the replies to requests that reach no endpoint.

A malformed request, or one that finds no free connection, has the headers, the log line and the count of any other
refusal.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cadenza import clock, parts
from cadenza.core.activity import read_filter, read_limit, read_place
from cadenza.core.errors import InvalidRequest, NotFound, RateLimited, error_headers, render_error
from cadenza.core.records import Outcome
from cadenza.core.spans import Span, parse_span
from cadenza.core.usage_report import parse_group, report_head
from cadenza.gateway.answers import CHAT_ERRORS, CORS, JSON, Answers, ErrorShape, new_request_id
from cadenza.gateway.auth import Caller, identify
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest, RequestRecord
from cadenza.http.exchange import Exchange
from cadenza.http.headers import encode_headers
from cadenza.observe import Observer
from cadenza.store.store import ReportsBusy, Store
from cadenza.store.tables.activity import read_page
from cadenza.store.tables.usage import balance, report

MODELS_PATH = "/v1/models"
SLASHES = re.compile("//+")

DEFAULT_ALLOWED_HEADERS = b"authorization, content-type, x-api-key, api-key"
MALFORMED = {  # by the status of the refusal
    400: "This is not a valid HTTP/1.1 request, or its headers are too large.",
    414: "The path of the address is too long: at most 2 KiB are allowed.",
    501: "The body has a transfer coding that is not supported: only chunked is.",
}
NO_CONNECTION = "The service has no free connection at the moment. Retry shortly."
USE_CHAT = "Use POST /v1/chat/completions"
USE_OPENAI = "Set the client to OpenAI's API, with a base address that ends in /v1"
NO_FILES = "No files are kept here. Send a file inside a message, as a part of the type `file`"
NOTHING_STORED = "Nothing is stored here. Send the whole conversation to POST /v1/chat/completions"
ONLY_TEXT = "The classes here answer with text only: use another service for"
ANSWERS_ONLY = f"{USE_CHAT} for answers, and another service for"
NOT_IMPLEMENTED = {  # by the first parts of a path: what to use instead
    "/v1/completions": f"{USE_CHAT}.",
    "/v1/batches": f"{USE_CHAT}, with one request each.",
    "/v1/embeddings": f"{ANSWERS_ONLY} embeddings: the classes here only answer.",
    "/v1/rerank": f"{ANSWERS_ONLY} ranking: the classes here only answer.",
    "/v1/moderations": f"{ANSWERS_ONLY} moderation: the classes here only answer.",
    "/v1/audio": f"{ONLY_TEXT} speech. A chat takes audio as a part of the type `input_audio`, if its model does.",
    "/v1/realtime": f"{ONLY_TEXT} speech. {USE_CHAT}, with `stream`.",
    "/v1/images": f"{ONLY_TEXT} images. A chat takes images as parts of the type `image_url`, if its model does.",
    "/v1/videos": f"{ONLY_TEXT} videos.",
    "/v1/files": f"{NO_FILES}.",
    "/v1/uploads": f"{NO_FILES}.",
    "/v1/vector_stores": f"{NO_FILES}.",
    "/v1/assistants": f"{NOTHING_STORED}.",
    "/v1/threads": f"{NOTHING_STORED}.",
    "/v1/conversations": f"{NOTHING_STORED}.",
    "/v1/fine_tuning": "The models behind the classes cannot be changed by clients.",
    "/v1beta": f"This is Gemini's API. {USE_OPENAI}; or put a proxy that translates before it, such as LiteLLM's.",
    "/api": f"This is Ollama's API. {USE_OPENAI}.",
}


class Endpoint(msgspec.Struct, frozen=True):
    """A path that is served: its name in the log, its methods, the scope that it needs, and what serves it.

    `identify` finds who asks; `headers` are on every reply, and `errors` is how it shows an error.
    """

    path: str  # {model} stands for any characters
    name: str
    methods: tuple[str, ...]
    scope: str
    serve: Callable[[Gateway, ApiRequest], Awaitable[None]]
    identify: Callable[[Gateway, Exchange], Awaitable[Caller]] = identify
    headers: bytes = CORS
    errors: ErrorShape = CHAT_ERRORS
    is_chat: bool = False  # it goes through the steps of a chat

    def fits(self, path: str) -> bool:
        start, _, end = self.path.partition("{model}")
        return path.startswith(start) and path.endswith(end)


async def get_usage(gateway: Gateway, request: ApiRequest) -> None:
    asked = request.query
    store, account_id, group = gateway.store, request.principal.account_id, asked.get("group_by", asked.get("group"))
    try:
        span = parse_span(asked.get("start"), asked.get("end"), datetime.now(UTC))
        if group == "request":
            shown = await _list_requests(store, account_id, span, asked)
        else:
            shown = (await report(store, account_id, span, parse_group(group, also="request"))).shown()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    except ReportsBusy as error:
        raise RateLimited(str(error), error.retry_after_s, "reports") from None
    request.answers.send_json(msgspec.json.encode(shown))


async def _list_requests(store: Store, account_id: str, span: Span, asked: Mapping[str, str]) -> dict[str, Any]:
    wanted, place, limit = read_filter(span, asked), read_place(asked.get("cursor")), read_limit(asked.get("limit"))
    page = await read_page(store, account_id, wanted, limit, place)
    balance_nano, _ = await balance(store, account_id)
    return {**report_head(span, balance_nano), **page.shown()}


async def list_models(gateway: Gateway, request: ApiRequest) -> None:
    request.answers.send_json(msgspec.json.encode(gateway.snapshot.catalogue.models(clock.now_ms())))


async def get_model(gateway: Gateway, request: ApiRequest) -> None:
    class_id = single_slashes(request.exchange.request.path).rstrip("/").removeprefix(MODELS_PATH + "/")
    model = gateway.snapshot.catalogue.model(class_id, clock.now_ms())
    request.answers.send_json(msgspec.json.encode(model))


def single_slashes(path: str) -> str:
    """The path without repeated slashes: clients may join a base address that ends in one with a path."""
    return SLASHES.sub("/", path)


def is_api(path: str) -> bool:
    """Whether the path is under /v1, or that of another API, also one that is not served."""
    if path.startswith("/v1/") or path == "/v1":
        return True
    path = single_slashes(path)
    return path.startswith(("/v1/", "/v1beta/", "/openai/", "/api/"))


def unknown_path(path: str, known: Iterable[str], instead: Mapping[str, str] = NOT_IMPLEMENTED) -> NotFound:
    """The error that says which path to use instead, or which part would serve this one."""
    for start, advice in instead.items():
        if path == start or path.startswith(f"{start}/"):
            return NotFound(f"This endpoint is not implemented. {advice}")
    if (part := parts.find(path)) and not part.is_installed:
        return NotFound(f"This endpoint {part.missing}")
    if path.startswith("/v1/v1"):
        return NotFound("The path has /v1 twice. Write it only once: in the client's base address, or in the path.")
    return NotFound(f"This path does not exist. The paths are {', '.join(known)} and {MODELS_PATH}/{{model}}.")


def preflight_headers(exchange: Exchange) -> bytes:
    """Any origin may call, without credentials, with the headers that it asks for."""
    return (
        b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\n"
        b"access-control-max-age: 86400\r\n"
        b"vary: access-control-request-headers\r\n"
    ) % exchange.request.headers.get(b"access-control-request-headers", DEFAULT_ALLOWED_HEADERS)


def refuse_malformed(observer: Observer, status: int) -> tuple[bytes, bytes]:
    """The headers and the body of the reply to bytes that are not HTTP, or not the HTTP that is served here."""
    error = InvalidRequest(MALFORMED[status])
    request_id = new_request_id()
    observer.record(
        Outcome(
            request_id=request_id,
            endpoint="malformed",
            status=status,
            duration_ms=0,
            ended_at=clock.now_ms(),
        )
    )
    headers = [*error_headers(error), (b"x-request-id", request_id.encode())]
    return JSON + encode_headers(headers), render_error(error.message, error.type)


async def refuse_connection(observer: Observer, exchange: Exchange) -> None:
    """All connections are busy. This one was accepted only to say so."""
    record = RequestRecord(exchange)
    Answers(exchange, record.request_id).fail(RateLimited(NO_CONNECTION, 1.0, "connections"))
    observer.metrics.refused.labels("connections").inc()
    observer.record(record.outcome())
