"""The site as an ASGI application: its routes, who may use them, its headers, and the one place that shows errors.

Imported when the first visitor comes, and not before. Every reply forbids framing, foreign content and inline scripts.
Requests are rate-limited by client network, so that pages cannot starve the API.
"""

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadenza.control.account.erasure import finish_erasures
from cadenza.core.codes import KEY_PREFIX
from cadenza.core.errors import ControlError, InvalidRequest, render_error
from cadenza.core.public import to_public
from cadenza.core.query import read_query
from cadenza.core.rates import Rate
from cadenza.fleet.limits import network_limits, release, take_all
from cadenza.parts.site.account.archive_turns import ArchiveTurns
from cadenza.parts.site.account.proof import check_proof, to_confirm_page
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer
from cadenza.parts.site.cookies import ANONYMOUS, CSRF_HEADER, SESSION_COOKIE
from cadenza.parts.site.docs.openapi import PLATFORM, build_document
from cadenza.parts.site.docs.reference import Reference
from cadenza.parts.site.eraser import Eraser
from cadenza.parts.site.errors import (
    FormTooLarge,
    Missing,
    NotAllowed,
    NotSignedIn,
    PageError,
    ProofNeeded,
    ScopeMissing,
    TokenRefused,
    TooMany,
    to_page_error,
)
from cadenza.parts.site.mailer import Mailer
from cadenza.parts.site.operator.ledger_check import LedgerCheck
from cadenza.parts.site.operator.reading import UseHistory
from cadenza.parts.site.render import Assets, Renderer
from cadenza.parts.site.routes import JSON, Access, ApiEndpoint, Page
from cadenza.parts.site.settings import SITE_KEY_VARIABLE, PlatformSettings
from cadenza.parts.site.sign_in.devices import Signer
from cadenza.parts.site.sign_in.passkeys import Passkeys
from cadenza.parts.site.sign_in.passwords import PasswordWork
from cadenza.parts.site.sign_in.second_factor import Sealer
from cadenza.parts.site.sign_in.sessions import find_session
from cadenza.parts.site.sign_in.sign_in import SignIns
from cadenza.parts.site.sign_in.throttle import take
from cadenza.parts.site.site_map import SITE
from cadenza.parts.site.tokens import TokenUser, find_token
from cadenza.parts.site.visit import SAFE_METHODS, Visit, WebContext
from cadenza.service import Service
from cadenza.store.store import StoreUnavailable

PAGE_RATE = Rate(50.0, 300)  # for each client network, which may be a whole office
GUESS_RATE = Rate(0.5, 50)  # access tokens that are not live, for each client network
IS_API_KEY = (
    "This is an API key (sk-cdz-…), which works below /v1 only. The platform API takes an access token (cdz_…): create "
    "one on the page /settings/tokens, or with 'cadenza token create'."
)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
    "cache-control": "no-store",
}
OPEN_TO_ALL = {
    "access-control-allow-origin": "*",
    "cross-origin-resource-policy": "cross-origin",
    "vary": "accept-encoding, host",
}
STRICT_TRANSPORT = "max-age=31536000"  # a year; other hosts of the domain are not ours to decide about

Serve = Callable[[Request], Awaitable[Response]]


def build_site(service: Service, markdown: MarkdownRenderer) -> Starlette:
    assets, store, rates = Assets(), service.store, service.shared.rates
    settings = PlatformSettings.given_in(service.settings)
    document, renderer, signer = build_document(SITE.routes), Renderer(assets, SITE.tabs), Signer(store)
    sealer = Sealer(store, settings.secret_key)
    if not sealer.has_key:
        service.log.warning(
            "the secrets of authenticator apps are stored unencrypted", advice=f"Put a key into {SITE_KEY_VARIABLE}."
        )
    context = WebContext(
        service=service,
        settings=settings,
        markdown=markdown,
        panels=SITE.panels,
        notes=SITE.notes,
        assets=assets,
        renderer=renderer,
        ledger_check=LedgerCheck(store, service.log),
        use_history=UseHistory(store),
        document=document,
        reference=Reference(document, renderer),
        sign_ins=SignIns(store, rates, PasswordWork(), signer, sealer),
        passkeys=Passkeys(store, signer),
        mailer=Mailer(store, rates, service.post) if service.post else None,
        log_eraser=Eraser(store.empty_log),
        account_eraser=Eraser(partial(finish_erasures, store)),
        archive_turns=ArchiveTurns(),
    )
    return _build_application(context)


def _build_application(context: WebContext) -> Starlette:
    async def asset(request: Request) -> Response:
        found = context.assets.respond(
            request.path_params["version"], request.path_params["name"], request.headers.get("accept-encoding", "")
        )
        if found is None:
            raise Missing
        return found

    async def document(request: Request) -> Response:
        """Pages of other sites may read it too, for tools that show or try an API."""
        visit = Visit(request, context)
        await _check_rate(visit)
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        make_content = context.document.compressed if is_compressed else context.document.content
        headers = {**OPEN_TO_ALL, **({"content-encoding": "gzip"} if is_compressed else {})}
        return Response(make_content(visit.base_url), headers=headers, media_type=JSON)

    routes = [
        Route("/static/{version}/{name}", asset),
        Route("/openapi.json", document),
        *(_route(context, one) for one in SITE.routes),
    ]
    shown = (PageError, ControlError, StoreUnavailable, HTTPException)
    middleware = [Middleware(SecurityHeaders, context), Middleware(QueryReader, context)]
    site = Starlette(
        routes=routes, middleware=middleware, exception_handlers=dict.fromkeys(shown, partial(_show_error, context))
    )
    site.router.redirect_slashes = False  # it would redirect to the host that the request names
    return site


class SecurityHeaders:
    """Middleware that adds the security headers to every reply.

    HSTS is sent if the site's own URL has https, or if a trusted proxy says that the client used it.
    """

    def __init__(self, app: ASGIApp, context: WebContext) -> None:
        self._app = app
        self._is_https = (context.settings.base_url or "").startswith("https://")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_https or scope["scheme"] == "https":
                    headers["strict-transport-security"] = STRICT_TRANSPORT
            await send(message)

        await self._app(scope, receive, send_with_headers)


class QueryReader:
    """Middleware that reads the query before any page. It refuses a query or a form that is too large.

    Starlette does not see the query.
    """

    def __init__(self, app: ASGIApp, context: WebContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, scope["query_string"] = scope["query_string"], b""
        problem: PageError | None = FormTooLarge() if scope["state"]["is_too_large"] else None
        scope["state"]["query"] = {}
        try:
            scope["state"]["query"] = read_query(query)
        except InvalidRequest as error:
            problem = PageError(error.message)
        app = await _show_error(self._context, Request(scope), problem) if problem else self._app
        await app(scope, receive, send)


def _route(context: WebContext, one: Page | ApiEndpoint) -> Route:
    if isinstance(one, Page):
        return Route(one.path, _serve_page(context, one), methods=[one.method])
    return Route(PLATFORM + one.path, _serve_endpoint(context, one), methods=[one.method])


def _serve_page(context: WebContext, page: Page) -> Serve:
    async def serve(request: Request) -> Response:
        visit = await _begin_visit(context, request)
        is_safe = request.method in SAFE_METHODS
        try:
            _check_access(visit, page.access)
        except NotSignedIn:
            if is_safe:
                return RedirectResponse(f"/sign-in?next={quote(visit.path)}", 303)
            raise
        asked = None
        if page.proof_page:
            back = page.proof_page.format(**request.path_params)
            asked = to_confirm_page(visit) if is_safe else await check_proof(visit, back)
        response = asked or await page.serve(visit)
        if visit.cookie.startswith(ANONYMOUS) and visit.cookie != visit.get_cookie(SESSION_COOKIE):
            visit.set_session_cookie(visit.cookie)
        visit.add_cookies(response)
        return response

    return serve


def _serve_endpoint(context: WebContext, endpoint: ApiEndpoint) -> Serve:
    async def serve(request: Request) -> Response:
        is_by_token = "authorization" in request.headers and endpoint.access is not Access.ANYONE
        visit = await (_begin_token_visit if is_by_token else _begin_visit)(context, request)
        _check_access(visit, endpoint.access)
        if visit.token_user:
            _check_scope(visit.token_user, endpoint.scope)
        is_safe, given = request.method in SAFE_METHODS, []
        if endpoint.takes:
            given = [visit.query(endpoint.takes) if is_safe else await visit.json(endpoint.takes)]
        elif not is_safe:
            await visit.check_change(request.headers.get(CSRF_HEADER, ""))
        if endpoint.needs_proof and not visit.token_user and not visit.require_session().is_proved(visit.now_ms):
            raise ProofNeeded
        result = await endpoint.serve(visit, *given)
        if result is None:
            response = Response(status_code=204)
        elif isinstance(result, Response):
            response = result
        else:
            response = Response(msgspec.json.encode(to_public(endpoint.returns, result)), media_type=JSON)
        visit.add_cookies(response)
        return response

    return serve


async def _begin_visit(context: WebContext, request: Request) -> Visit:
    """Look up the session. A browser without one gets an anonymous cookie."""
    visit = Visit(request, context)
    await _check_rate(visit)
    cookie = visit.get_cookie(SESSION_COOKIE)
    if cookie and not cookie.startswith(ANONYMOUS):
        visit.signed_in = await find_session(visit.store, cookie, visit.now_ms, visit.service.settings.retention)
    if visit.signed_in is None and not cookie.startswith(ANONYMOUS):
        cookie = ANONYMOUS + secrets.token_urlsafe(24)
    visit.cookie = cookie
    request.state.visit = visit
    return visit


async def _begin_token_visit(context: WebContext, request: Request) -> Visit:
    """Look up the access token of a request. It has no session, whatever cookies it sends."""
    visit = request.state.visit = Visit(request, context)
    await _check_rate(visit)
    scheme, _, given = request.headers["authorization"].strip().partition(" ")
    secret = given.strip() if scheme.lower() == "bearer" else ""
    limits = network_limits("tokens", visit.address, GUESS_RATE)
    await take(visit.service.shared.rates, limits, "Too many requests came without a valid access token. Retry later.")
    visit.token_user = await find_token(visit.store, secret.encode("latin-1", "replace"), visit.now_ms)
    if visit.token_user is None:
        raise TokenRefused(IS_API_KEY if secret.startswith(KEY_PREFIX) else "")
    release(visit.service.shared.rates, limits)
    return visit


def _check_scope(user: TokenUser, scope: str | None) -> None:
    if scope is None:
        raise ScopeMissing("This endpoint is for signed-in browsers: no access token can use it.")
    if not user.may(scope):
        raise ScopeMissing(
            f"This access token lacks the scope '{scope}': it has {' '.join(user.token.scopes)}. Use one that has it."
        )


def _check_access(visit: Visit, access: Access) -> None:
    """`visit.account` raises NotSignedIn for a stranger."""
    if access is not Access.ANYONE and not visit.account.is_operator and access is Access.OPERATOR:
        raise NotAllowed


async def _check_rate(visit: Visit) -> None:
    refused = await take_all(visit.service.shared.rates, network_limits("pages", visit.address, PAGE_RATE))
    if refused:
        raise TooMany("Too many requests from your network. Try again in a moment.", refused.wait_s)


async def _show_error(context: WebContext, request: Request, error: Exception) -> Response:
    """The cookies that the visit has set so far are sent too: a proof may have made a new secret before the error."""
    found = to_page_error(error)
    visit: Visit | None = getattr(request.state, "visit", None)
    response: Response
    if request.scope["path"].startswith(PLATFORM) or "text/html" not in request.headers.get("accept", ""):
        response = Response(render_error(found.message, found.type), found.status, found.headers, JSON)
    else:
        visit = visit or await _visit_of_error(context, request, found)
        response = visit.page("problem.html", problem=found, has_menu=visit.cookie != "")
        response.status_code = found.status
        response.headers.update(found.headers)
    if visit:
        visit.add_cookies(response)
    return response


async def _visit_of_error(context: WebContext, request: Request, error: PageError) -> Visit:
    """For an error before there was a visit. For an unknown path, the session is looked up for the menu."""
    if isinstance(error, Missing):
        with contextlib.suppress(PageError, StoreUnavailable):
            return await _begin_visit(context, request)
    return Visit(request, context)
