"""The API under /v1: paths, preflights, and the one place where errors become answers.

(After a stream's first byte they are relay.py's.) Every exception ends here: a known one is rendered, a store that does
not answer is a reason to come back later, a client that left is counted, and anything else is logged by its place,
never by its text, and answered as an internal error.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.errors import CadenzaError, Ending, Internal, MethodNotAllowed, NotFound, RateLimited
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.models import MODELS_PATH, get_model, list_models
from cadenza.gateway.usage import get_usage
from cadenza.http.exchange import ClientGone, Exchange
from cadenza.observe import places
from cadenza.store.database import StoreUnavailable

DEFAULT_ALLOWED_HEADERS = b"authorization, content-type, x-api-key"
STORE_RETRY_S = 2.0
DRAINING_RETRY_S = 1.0
NOT_HERE = ("/v1/embeddings", "/v1/completions")

Serve = Callable[[Gateway, Exchange], Awaitable[None]]


class Endpoint(msgspec.Struct, frozen=True):
    """A path that is served: its name in the log, its method, and what serves it."""

    name: str
    method: str
    serve: Serve


ENDPOINTS = {
    "/v1/chat/completions": Endpoint("chat", "POST", serve_chat),
    MODELS_PATH: Endpoint("models", "GET", list_models),
    "/v1/usage": Endpoint("usage", "GET", get_usage),
}
ONE_MODEL = Endpoint("model", "GET", get_model)


async def serve_api(gw: Gateway, exchange: Exchange) -> None:
    name = "unknown"
    gw.begin(exchange)
    try:
        if gw.is_draining:
            raise _draining(gw, exchange)
        if exchange.method == "OPTIONS":
            name = "preflight"
            return exchange.respond(204, b"", _preflight(exchange))
        endpoint = find_endpoint(exchange.path)
        name = endpoint.name
        if exchange.method != endpoint.method:
            raise MethodNotAllowed(f"{exchange.method} is not for this path; use {endpoint.method}.", endpoint.method)
        await endpoint.serve(gw, exchange)
    except CadenzaError as error:
        exchange.fail(error)
    except StoreUnavailable:
        exchange.fail(RateLimited("The service cannot reach its store at the moment. Retry shortly.", STORE_RETRY_S))
    except ClientGone:
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not exchange.is_cut or task is None or task.uncancel():
            raise
        exchange.fail(Ending())
    except Exception as error:  # noqa: BLE001 the request edge: whatever it is, the client gets an answer
        gw.log.error("internal error", request_id=exchange.request_id, endpoint=name, places=places(error))
        if exchange.is_started:
            raise ConnectionAbortedError from None  # the server closes the connection: no clean end
        exchange.fail(Internal())
    finally:
        gw.end(exchange, name)


def _draining(gw: Gateway, exchange: Exchange) -> RateLimited:
    """The service ends and takes nothing new. Another connection may reach another process."""
    exchange.close_after_reply()
    gw.metrics.refused.labels("draining").inc()
    return RateLimited("The service is restarting. Retry shortly.", DRAINING_RETRY_S)


def find_endpoint(path: str) -> Endpoint:
    path = path.rstrip("/")
    if endpoint := ENDPOINTS.get(path):
        return endpoint
    if path.startswith(MODELS_PATH + "/"):
        return ONE_MODEL
    if path in NOT_HERE:
        raise NotFound("This is not implemented here. Use POST /v1/chat/completions.")
    if path.startswith("/v1/v1"):
        raise NotFound("The path has /v1 twice: the base address of the client already ends with it.")
    raise NotFound(f"There is no such path. There are {', '.join(ENDPOINTS)} and {MODELS_PATH}/{{model}}.")


def _preflight(exchange: Exchange) -> bytes:
    """Any origin may exchange, without credentials; the headers that it asks for are allowed."""
    return (
        b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\n"
        b"access-control-max-age: 86400\r\n"
        b"vary: access-control-request-headers\r\n"
    ) % exchange.headers.get(b"access-control-request-headers", DEFAULT_ALLOWED_HEADERS)
