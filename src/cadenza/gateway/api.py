"""The API: its paths, the keys of its requests, and the one place where errors become replies.

Every exception is handled here. A CadenzaError is sent as it is; a store that does not answer, and a lack of
memory become a 429; a client that disconnected is only counted. For anything else, the log gets the places in the code,
never the text, and the client gets a 500.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NoReturn

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
    NOT_IMPLEMENTED,
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
from cadenza.gateway.request import ApiRequest, OnStep, RequestRecord
from cadenza.http.exchange import STREAMING, Exchange, Interruption
from cadenza.observe import places
from cadenza.process import is_exhausted
from cadenza.store.store import StoreUnavailable

RETRY_S = 2.0
OUT_OF_MEMORY = "The service has no memory left for this request at the moment. Retry shortly."
READ = ("GET", "HEAD")
INTERRUPTIONS = {Interruption.SHUTDOWN: Ending, Interruption.REVOKED: KeyRevoked}


CHAT = Endpoint("/v1/chat/completions", "chat", ("POST",), "inference", serve_chat, is_chat=True)
ENDPOINTS = (
    CHAT,
    Endpoint(MODELS_PATH, "models", READ, "models", list_models),
    Endpoint(f"{MODELS_PATH}/{{model}}", "model", READ, "models", get_model),
    Endpoint("/v1/usage", "usage", READ, "usage", get_usage),
)

ServeApi = Callable[[Exchange, Endpoint | None], Awaitable[None]]


class Router:
    """The endpoints by their paths. A part adds its own at the start."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.exact: dict[str, Endpoint] = {}  # by path
        self._patterns: list[Endpoint] = []
        self._instead: dict[str, str] = {}
        self.add(ENDPOINTS, NOT_IMPLEMENTED)

    def add(self, endpoints: Iterable[Endpoint], instead: Mapping[str, str] | None = None) -> None:
        """`instead` says, by the start of a path that is not served, what to use."""
        for endpoint in endpoints:
            if "{" in endpoint.path:
                self._patterns.append(endpoint)
            else:
                self.exact[endpoint.path] = endpoint
        self._instead |= instead or {}

    def find(self, path: str) -> Endpoint | None:
        """The endpoint of a path, also of one with a slash at its end, or with repeated slashes."""
        for written in (path, single_slashes(path)):
            plain = written.removesuffix("/")
            if endpoint := self.exact.get(written) or self.exact.get(plain):
                return endpoint
            if endpoint := next((one for one in self._patterns if one.fits(plain)), None):
                return endpoint
        return None

    async def serve(
        self,
        exchange: Exchange,
        endpoint: Endpoint | None = None,
        make_record: Callable[[Exchange, OnStep], RequestRecord] = RequestRecord,
    ) -> None:
        """Serve one request, by the endpoint of its path unless another is given.

        It always gets a reply, or its connection is closed.
        """
        gateway = self._gateway
        record, request = make_record(exchange, gateway.observer.at), exchange.request
        known = endpoint or self.exact.get(request.path, CHAT)  # its errors are shown before it is reached
        answers = Answers(exchange, record.request_id, known.headers, errors=known.errors)
        gateway.in_flight.key_digests[exchange] = NO_KEY
        try:
            if gateway.in_flight.is_draining:
                refuse_draining(gateway, exchange)
            query = read_query(request.query)  # 400
            if request.method == "OPTIONS" and answers.headers is CORS:  # for any path of the API
                return send_preflight(exchange, answers, record)
            endpoint = endpoint or self._require(request.path)  # 404
            record.endpoint, answers.errors = endpoint.name, endpoint.errors
            if request.method not in endpoint.methods:
                raise MethodNotAllowed(request.method, endpoint.methods)
            caller = await endpoint.identify(gateway, exchange)  # 401
            record.principal = caller.principal
            answers.added_headers = rate_headers(caller.ticket)
            authorize(gateway, exchange, caller, endpoint.scope)  # 403 429
            record.at("identified")
            await endpoint.serve(
                gateway, ApiRequest(exchange, caller.principal, answers, record, gateway.snapshot, query)
            )
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

    def _require(self, path: str) -> Endpoint:
        if endpoint := self.find(path):
            return endpoint
        known = [path for path in self.exact if path.startswith("/v1/")]
        raise unknown_path(single_slashes(path).removesuffix("/"), known, self._instead)


def refuse_draining(gateway: Gateway, exchange: Exchange) -> NoReturn:
    exchange.close_after_reply()  # a new connection may reach another process
    gateway.observer.metrics.refused.labels("draining").inc()
    raise RateLimited("The service is restarting. Retry shortly.", 1.0, "shutdown")


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
