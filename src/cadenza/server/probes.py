"""Outside /v1 and the pages: the health probes and the metrics, which need no key and no account.

/readyz tells anybody which kind of problem keeps the service from chats. What was found, and what to do, it tells those
who may read the metrics: a reason may have the path of a file or the name of a provider. To programs on this machine
each reply has the name of its process in the store, so that commands notice a service with another store.

A client that leaves out /v1 is told so. Probes and metrics trust the network that a request comes from, so a page of
another site must not reach them by DNS rebinding: by a name of its own that resolves to our address. The Host header of
such a request has that name, and is refused.
"""

import hmac
import socket
from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.errors import (
    CadenzaError,
    Forbidden,
    Headers,
    MethodNotAllowed,
    NotFound,
    error_headers,
    render_error,
)
from cadenza.core.query import read_query
from cadenza.http.exchange import Exchange, Request
from cadenza.http.headers import encode_headers, is_local, parse_address
from cadenza.observe import Observer, places
from cadenza.observe.health import RULES, blocking
from cadenza.parts import PAGES, find
from cadenza.server.service_health import ServiceHealth

WRONG_HOST = "This path is served under an address, the name of this machine, or the host of base_url in [platform]."
NEEDS_TOKEN = "The metrics need their token: send it as 'Authorization: Bearer …'."  # noqa: S105 a sentence
RenderMetrics = Callable[[], Awaitable[bytes]]

PATHS = ("/healthz", "/health", "/readyz", "/metrics")
API_PATHS = ("/chat/completions", "/models", "/usage", "/completions", "/embeddings", "/responses")
USAGE_PAGE = "/usage"
VERBOSE = b"verbose"
PROCESS_HEADER = b"x-cadenza-process"
PRIVATE_SUFFIXES = (".localhost", ".internal", ".svc", ".svc.cluster.local")
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
COMMON_HEADERS = (
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
    b"content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"
)


class Refused(CadenzaError):
    """A request that is not for this service or this client, with 401 or 421."""

    retry_helps = False

    def __init__(self, status: int, type_: str, message: str, headers: Headers | None = None) -> None:
        super().__init__(message, headers)
        self.status = status
        self.type = type_


class HostNames:
    """The host names that a request may use: addresses, names that no public registry assigns, machine and site.

    `base_url` is the address of the site, where it is known.
    """

    def __init__(self, base_url: str | None = None) -> None:
        site = (base_url or "").partition("://")[2].partition("/")[0]
        self._own = {_name(site), socket.gethostname().lower()}

    def allow(self, host: bytes | None) -> bool:
        """Whether a Host header, which HTTP/1.0 may leave out, names this service."""
        text = (host or b"").decode("latin-1")
        name = _name(text)
        return (
            "." not in name or name.endswith(PRIVATE_SUFFIXES) or name in self._own or parse_address(text) is not None
        )


class Probes:
    """Probes and metrics, and all that is wrong.

    With a `metrics_token`, the metrics need it and are open to all networks; without one, only to this machine.
    `render_metrics` renders those of all workers where there are several.
    """

    def __init__(
        self,
        health: ServiceHealth,
        observer: Observer,
        metrics_token: str | None = None,
        render_metrics: RenderMetrics | None = None,
        host_names: HostNames | None = None,
        process_name: Callable[[], str] = str,
    ) -> None:
        self._health = health
        self._observer = observer
        self._metrics_token = metrics_token
        self._render_metrics = render_metrics
        self._host_names = host_names or HostNames()
        self._process_name = process_name

    def serves(self, request: Request) -> bool:
        """Whether a request is answered here. All else is a page; so is usage, unless a client sends a key."""
        if request.path == USAGE_PAGE or request.path.startswith(f"{USAGE_PAGE}/"):
            return b"authorization" in request.headers or b"x-api-key" in request.headers
        return request.path in PATHS or request.path.startswith(API_PATHS)

    async def serve(self, exchange: Exchange) -> None:
        headers = b""
        try:
            _check(exchange.request)
            self._check_host(exchange)
            status, kind, body = await self._answer(exchange)
        except CadenzaError as error:
            status, kind, body = error.status, JSON, render_error(error.message, error.type)
            headers = encode_headers(error_headers(error))
        except Exception as error:  # noqa: BLE001 the request edge: the client always gets an answer
            self._observer.log.error("internal error", endpoint="site", places=places(error))
            status, kind, body = 500, TEXT, b"Internal error.\n"
        if is_local(exchange.peer, exchange.request.fields) or self._may_read_metrics(exchange):
            headers += encode_headers([(PROCESS_HEADER, self._process_name().encode())])
        exchange.respond(status, b"content-type: %b\r\n%b%b" % (kind, headers, COMMON_HEADERS), body)

    async def _answer(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        match exchange.request.path:
            case "/healthz" | "/health":
                return 200, TEXT, b"ok\n"
            case "/readyz":
                return await self._answer_ready(exchange)
            case _:
                self._check_metrics_access(exchange)
                if self._render_metrics:
                    return 200, PROMETHEUS, await self._render_metrics()
                return 200, PROMETHEUS, self._observer.metrics.render()

    async def _answer_ready(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        """`?verbose` has all that is wrong, for `cadenza top` and `cadenza doctor`."""
        is_operator = self._may_read_metrics(exchange)
        found = await (self._health.problems() if is_operator else self._health.blocking())
        reasons = blocking(found)
        if is_operator and exchange.request.query == VERBOSE:
            return 503 if reasons else 200, JSON, msgspec.json.encode(found)
        if not reasons:
            return 200, TEXT, b"ready\n"
        lines = (
            [f"{one.words} {one.advice}" for one in found]
            if is_operator
            else [RULES[one.kind].title for one in reasons]
        )
        return 503, TEXT, "".join(f"{line}\n" for line in lines).encode()

    def _check_host(self, exchange: Exchange) -> None:
        """421 for a foreign host name.

        A trusted proxy may name any host: it passes on what the client used. A token protects the metrics by itself.
        """
        request = exchange.request
        is_guarded = exchange.is_forwarded or (request.path == "/metrics" and self._metrics_token)
        if not (is_guarded or self._host_names.allow(request.headers.get(b"host"))):
            raise Refused(421, "invalid_request_error", WRONG_HOST)

    def _check_metrics_access(self, exchange: Exchange) -> None:
        """401 without the token. If there is none, 403 for all but a program on this machine."""
        if self._may_read_metrics(exchange):
            return
        if self._metrics_token:
            raise Refused(401, "authentication_error", NEEDS_TOKEN, [(b"www-authenticate", b"Bearer")])
        raise Forbidden("The metrics are open to programs on this machine only. To open them, set a metrics token.")

    def _may_read_metrics(self, exchange: Exchange) -> bool:
        if not self._metrics_token:
            return is_local(exchange.peer, exchange.request.fields)
        scheme, _, token = exchange.request.headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._metrics_token.encode())


async def refuse_page(exchange: Exchange) -> None:
    """404 for a page, where the part that has them is not installed."""
    part = find(PAGES)
    assert part
    error = NotFound(f"This path {part.missing}.")
    headers = b"content-type: %b\r\n%b" % (JSON, COMMON_HEADERS)
    exchange.respond(error.status, headers, render_error(error.message, error.type))


def _check(request: Request) -> None:
    """404 for a path that is not served here, 405 for a method that it does not allow, 400 for too long a query."""
    read_query(request.query)
    if request.path not in PATHS:
        raise NotFound("This path exists only below /v1: the base address of the client must end in /v1.")
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(request.method, ("GET", "HEAD"))


def _name(host: str) -> str:
    """Without the port, in lower case."""
    return host.partition(":")[0].rstrip(".").lower()
