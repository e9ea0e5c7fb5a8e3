"""The API under /v1 and the chat of the web application: paths, keys, and the one place where errors become replies.

Every exception is handled here. A CadenzaError is sent as it is; a store that does not answer, and a lack of
memory become a 429; a client that disconnected is only counted. For anything else, the log gets the places in the code,
never the text, and the client gets a 500.
"""

import asyncio
from collections.abc import Awaitable, Callable

from cadenza.core.errors import (
    CadenzaError,
    Ending,
    InsufficientCredit,
    Internal,
    InvalidRequest,
    KeyRevoked,
    MethodNotAllowed,
    RateLimited,
)
from cadenza.core.query import read_query
from cadenza.gateway.answers import CORS, Answers
from cadenza.gateway.auth import authorize, rate_headers
from cadenza.gateway.chat import serve_chat
from cadenza.gateway.endpoints import (
    MODELS_PATH,
    Endpoint,
    get_model,
    get_usage,
    list_models,
    preflight_headers,
    single_slashes,
    unknown_path,
)
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.in_flight import NO_KEY
from cadenza.gateway.request import ApiRequest, At, RequestRecord
from cadenza.http.exchange import STREAMING, Exchange, Interruption
from cadenza.observe import places
from cadenza.parts.protocols.azure import is_deployment_path, serve_deployment
from cadenza.parts.protocols.messages import MESSAGE_ERRORS, count_tokens, serve_messages
from cadenza.parts.protocols.responses import serve_responses
from cadenza.process import is_exhausted
from cadenza.store.store import StoreUnavailable

RETRY_S = 2.0
OUT_OF_MEMORY = "The service has no memory left for this request at the moment. Retry shortly."
READ = ("GET", "HEAD")
INTERRUPTIONS = {Interruption.SHUTDOWN: Ending, Interruption.REVOKED: KeyRevoked}


ENDPOINTS = {
    "/v1/chat/completions": Endpoint("chat", ("POST",), "inference", serve_chat),
    "/v1/messages": Endpoint("messages", ("POST",), "inference", serve_messages, errors=MESSAGE_ERRORS),
    "/v1/messages/count_tokens": Endpoint("count_tokens", ("POST",), "inference", count_tokens, errors=MESSAGE_ERRORS),
    "/v1/responses": Endpoint("responses", ("POST",), "inference", serve_responses),
    MODELS_PATH: Endpoint("models", READ, "models", list_models),
    "/v1/usage": Endpoint("usage", READ, "usage", get_usage),
}
ONE_MODEL = Endpoint("model", READ, "models", get_model)
DEPLOYMENT = Endpoint("azure_chat", ("POST",), "inference", serve_deployment)


ServeApi = Callable[[Gateway, Exchange, Endpoint | None], Awaitable[None]]


async def serve_api(
    gateway: Gateway,
    exchange: Exchange,
    endpoint: Endpoint | None = None,
    make_record: Callable[[Exchange, At], RequestRecord] = RequestRecord,
) -> None:
    """Serve one request, by the endpoint of its path unless another is given.

    It always gets a reply, or its connection is closed.
    """
    record, request = make_record(exchange, gateway.observer.at), exchange.request
    known = endpoint or ENDPOINTS.get(request.path, ONE_MODEL)  # its errors are shown before it is reached
    answers = Answers(exchange, record.request_id, known.headers, errors=known.errors)
    gateway.in_flight.key_digests[exchange] = NO_KEY
    try:
        if gateway.in_flight.is_draining:
            exchange.close_after_reply()  # a new connection may reach another process
            gateway.observer.metrics.refused.labels("draining").inc()
            raise RateLimited("The service is restarting. Retry shortly.", 1.0, "shutdown")
        query = read_query(request.query)  # 400
        if request.method == "OPTIONS" and answers.headers is CORS:  # for any path of the API
            return send_preflight(exchange, answers, record)
        endpoint = endpoint or find_endpoint(request.path)
        record.endpoint, answers.errors = endpoint.name, endpoint.errors
        if request.method not in endpoint.methods:
            raise MethodNotAllowed(request.method, endpoint.methods)
        caller = await endpoint.identify(gateway, exchange)  # 401
        record.principal = caller.principal
        answers.added_headers = rate_headers(caller.ticket)
        authorize(gateway, exchange, caller, endpoint.scope)  # 403 429
        record.at("identified")
        await endpoint.serve(gateway, ApiRequest(exchange, caller.principal, answers, record, gateway.snapshot, query))
    except CadenzaError as error:
        record.ended_by(error)
        refuse(gateway, exchange, answers, error, record)
    except StoreUnavailable as error:
        record.ended_by(error)
        gateway.observer.metrics.refused.labels("store").inc()
        answers.fail(RateLimited("The service cannot reach its store at the moment. Retry shortly.", RETRY_S))
    except asyncio.CancelledError as error:
        record.ended_by(error)
        interruption = exchange.absorb_cancellation()
        if interruption is None:
            raise
        if error_of := INTERRUPTIONS.get(interruption):
            answers.fail(error_of())
    except Exception as error:  # noqa: BLE001 the request edge: the client gets an answer to any error
        gateway.observer.log.error("internal error", request_id=record.request_id, places=places(error))
        record.ended_by(error)
        if exchange.state is STREAMING and not answers.is_waiting:
            raise ConnectionAbortedError from None  # closes the connection: the stream must not seem complete
        answers.fail(RateLimited(OUT_OF_MEMORY, RETRY_S) if is_exhausted(error) else Internal())
    finally:
        gateway.in_flight.end(exchange)
        gateway.in_flight.pings.stop(answers)
        exchange.body.release()
        if not record.completion_id:  # no credit was held; otherwise the ledger records it, with its charge
            gateway.observer.record(record.outcome())


def send_preflight(exchange: Exchange, answers: Answers, record: RequestRecord) -> None:
    record.endpoint = "preflight"
    answers.send_no_content(preflight_headers(exchange))


def refuse(gateway: Gateway, exchange: Exchange, answers: Answers, error: CadenzaError, record: RequestRecord) -> None:
    """Send the error. A key that could not pay is read again by the next request: its cached balance is too high."""
    answers.fail(error)
    if record.principal and isinstance(error, InvalidRequest | InsufficientCredit):
        gateway.unpaid.charge(record.principal.account_id, record.read_cpu_s)
    if isinstance(error, InsufficientCredit):
        gateway.key_cache.forget(gateway.in_flight.key_digests[exchange])


def find_endpoint(path: str) -> Endpoint:
    if endpoint := ENDPOINTS.get(path) or ENDPOINTS.get(path := path.removesuffix("/")):
        return endpoint
    if path.startswith(MODELS_PATH + "/"):
        return ONE_MODEL
    if is_deployment_path(path):
        return DEPLOYMENT
    if "//" in path:
        return find_endpoint(single_slashes(path))
    raise unknown_path(path, ENDPOINTS)
