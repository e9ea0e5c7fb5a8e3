"""The API under /v1 and the chat of the web application: paths, keys, and the one place where errors become replies.

Every exception is handled here. A CadenzaError is sent as it is; a store that does not answer, and memory that is not
there, become a 429; a client that disconnected is only counted. For anything else, the log gets the places in the code,
never the text, and the client an internal error.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.errors import (
    CadenzaError,
    Ending,
    Internal,
    InvalidRequest,
    KeyRevoked,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    error_headers,
    render_error,
)
from cadenza.core.records import Outcome
from cadenza.gateway.answers import CORS, JSON, Answers, new_request_id
from cadenza.gateway.auth import Caller, authorize, identify, rate_headers
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.endpoints import MODELS_PATH, get_model, get_usage, list_models, single_slashes
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest, RequestRecord
from cadenza.http.exchange import STREAMING, Exchange, Interruption
from cadenza.http.headers import encode_headers
from cadenza.observe import Observer, places
from cadenza.process import is_exhausted
from cadenza.store.store import StoreUnavailable

DEFAULT_ALLOWED_HEADERS = b"authorization, content-type, x-api-key, api-key"
STORE_RETRY_S = 2.0
MEMORY_RETRY_S = 2.0
OUT_OF_MEMORY = "The service has no memory left for this request at the moment. Retry shortly."
DRAINING_RETRY_S = 1.0
READ = ("GET", "HEAD")
INTERRUPTIONS = {Interruption.SHUTDOWN: Ending, Interruption.REVOKED: KeyRevoked}
USE_CHAT = "Use POST /v1/chat/completions"
NOT_IMPLEMENTED = {  # by the first word below /v1: what to use instead
    "completions": f"{USE_CHAT}.",
    "responses": f"{USE_CHAT}. A client that speaks only this API, like Codex, connects through LiteLLM's proxy.",
    "messages": f"{USE_CHAT}. A client that speaks only this API, like Claude Code, connects through LiteLLM's proxy "
    "or claude-code-router.",
    "embeddings": f"{USE_CHAT} for answers, and another service for embeddings: the classes here only answer.",
}

MALFORMED = "This is not a valid HTTP/1.1 request, or its headers are too large."
UNKNOWN_CODING = "The body has a transfer coding that is not supported: only chunked is."
NO_CONNECTION = "The service has no free connection at the moment. Retry shortly."
NO_CONNECTION_RETRY_S = 1.0


class Endpoint(msgspec.Struct, frozen=True):
    """A path that is served: its name in the log, its methods, the scope that it needs, and what serves it.

    `identify` finds who asks; `headers` are on every reply.
    """

    name: str
    methods: tuple[str, ...]
    scope: str
    serve: Callable[[Gateway, ApiRequest], Awaitable[None]]
    identify: Callable[[Gateway, Exchange], Awaitable[Caller]] = identify
    headers: bytes = CORS


ENDPOINTS = {
    "/v1/chat/completions": Endpoint("chat", ("POST",), "inference", serve_chat),
    MODELS_PATH: Endpoint("models", READ, "models", list_models),
    "/v1/usage": Endpoint("usage", READ, "usage", get_usage),
}
ONE_MODEL = Endpoint("model", READ, "models", get_model)


async def serve_api(gateway: Gateway, exchange: Exchange, endpoint: Endpoint | None = None) -> None:
    """Serve one request, by the endpoint of its path under /v1 unless another is given.

    It always gets a reply, or its connection is closed.
    """
    record = RequestRecord(exchange)
    answers = Answers(exchange, record.request_id, endpoint.headers if endpoint else CORS)
    gateway.in_flight.begin(exchange)
    try:
        if gateway.is_draining:
            raise _draining(gateway, exchange)
        if endpoint is None and exchange.request.method == "OPTIONS":
            record.found("preflight")
            return answers.send_no_content(_preflight_headers(exchange))
        endpoint = endpoint or find_endpoint(exchange.request.path)
        record.found(endpoint.name)
        if exchange.request.method not in endpoint.methods:
            raise _wrong_method(exchange.request.method, endpoint.methods)
        caller = await endpoint.identify(gateway, exchange)  # 401
        record.identified(caller.principal)
        answers = Answers(exchange, record.request_id, endpoint.headers + rate_headers(caller.ticket))
        authorize(gateway, exchange, caller, endpoint.scope)  # 403 429
        await endpoint.serve(gateway, ApiRequest(exchange, caller.principal, answers, record))
    except CadenzaError as error:
        answers.fail(error)
    except StoreUnavailable:
        answers.fail(RateLimited("The service cannot reach its store at the moment. Retry shortly.", STORE_RETRY_S))
    except asyncio.CancelledError:
        interruption = exchange.absorb_cancellation()
        if interruption is None:
            raise
        if error_of := INTERRUPTIONS.get(interruption):
            answers.fail(error_of())
    except Exception as error:  # noqa: BLE001 the request edge: the client gets an answer to any error
        gateway.observer.log.error("internal error", request_id=record.request_id, places=places(error))
        if exchange.state is STREAMING and not answers.is_waiting:
            raise ConnectionAbortedError from None  # closes the connection: the stream must not seem complete
        answers.fail(RateLimited(OUT_OF_MEMORY, MEMORY_RETRY_S) if is_exhausted(error) else Internal())
    finally:
        gateway.in_flight.end(exchange)
        exchange.body.release()
        if not record.is_held:  # otherwise the ledger records it, with its charge
            gateway.observer.record(record.outcome())


def _draining(gateway: Gateway, exchange: Exchange) -> RateLimited:
    """The service is stopping. The connection is closed, because a new one may reach another process."""
    exchange.close_after_reply()
    gateway.observer.metrics.refused.labels("draining").inc()
    return RateLimited("The service is restarting. Retry shortly.", DRAINING_RETRY_S)


def _wrong_method(used: str, allowed: tuple[str, ...]) -> MethodNotAllowed:
    return MethodNotAllowed(f"{used} is not allowed for this path; use {allowed[0]}.", ", ".join(allowed))


def find_endpoint(path: str) -> Endpoint:
    if endpoint := ENDPOINTS.get(path) or ENDPOINTS.get(path := path.removesuffix("/")):
        return endpoint
    if path.startswith(MODELS_PATH + "/"):
        return ONE_MODEL
    if "//" in path:
        return find_endpoint(single_slashes(path))
    if instead := NOT_IMPLEMENTED.get(path.split("/")[2] if path.startswith("/v1/") else ""):
        raise NotFound(f"This endpoint is not implemented. {instead}")
    if path.startswith("/v1/v1"):
        raise NotFound("The path has /v1 twice. Write it only once: in the client's base address, or in the path.")
    raise NotFound(f"This path does not exist. The paths are {', '.join(ENDPOINTS)} and {MODELS_PATH}/{{model}}.")


def _preflight_headers(exchange: Exchange) -> bytes:
    """Any origin may call, without credentials, with the headers that it asks for."""
    return (
        b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\n"
        b"access-control-max-age: 86400\r\n"
        b"vary: access-control-request-headers\r\n"
    ) % exchange.request.headers.get(b"access-control-request-headers", DEFAULT_ALLOWED_HEADERS)


def refuse_malformed(observer: Observer, status: int) -> tuple[bytes, bytes]:
    """The headers and the body of the reply to bytes that are not HTTP, or not the HTTP that is served here."""
    error = InvalidRequest(UNKNOWN_CODING if status == 501 else MALFORMED)
    request_id = new_request_id()
    observer.record(
        Outcome(
            request_id=request_id,
            endpoint="malformed",
            status=status,
            duration_ms=0,
            ended_at=time.time_ns() // 1_000_000,
        )
    )
    headers = [*error_headers(error), (b"x-request-id", request_id.encode())]
    return JSON + encode_headers(headers), render_error(error.message, error.type)


async def refuse_connection(observer: Observer, exchange: Exchange) -> None:
    """All connections are busy. This one was accepted only so that its client learns of it."""
    record = RequestRecord(exchange)
    Answers(exchange, record.request_id).fail(RateLimited(NO_CONNECTION, NO_CONNECTION_RETRY_S))
    observer.metrics.refused.labels("connections").inc()
    observer.record(record.outcome())
