"""The site as an ASGI application: its routes, who may use them, its headers, and the one place that shows errors.

Every reply forbids framing, foreign content and inline scripts. Requests of one network are limited, so that pages
cannot take the time of the API.
"""

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cadenza.control.money.idempotency import Unconfirmed
from cadenza.control.sign_in.sessions import find_session
from cadenza.control.sign_in.throttle import Throttled
from cadenza.core.errors import ControlError, render_error
from cadenza.core.networks import network_of
from cadenza.core.rates import Rate
from cadenza.store.store import StoreUnavailable, StoreUncertain
from cadenza.web.context import WebContext
from cadenza.web.cookies import ANONYMOUS, CSRF_HEADER, cookie_name
from cadenza.web.errors import Missing, NotAllowed, NotConfirmed, NotSignedIn, PageError, TooMany
from cadenza.web.routes import Access, Endpoint, Page, Routes
from cadenza.web.visit import SAFE_METHODS, Visit

API = "/platform/api"
JSON = "application/json"
PAGE_RATE = Rate(50.0, 300)  # of one network, which may be that of a whole office
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
}
OPEN_TO_ALL = {"access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin"}
NO_STORE = "no-store"
STRICT_TRANSPORT = "max-age=31536000"  # a year; other hosts of the domain are not ours to decide about

Serve = Callable[[Request], Awaitable[Response]]


def build_application(context: WebContext, listed: Routes) -> Starlette:
    async def asset(request: Request) -> Response:
        found = context.assets.respond(
            request.path_params["version"], request.path_params["name"], request.headers.get("accept-encoding", "")
        )
        if found is None:
            raise Missing
        return _with_headers(context, request, found)

    async def document(request: Request) -> Response:
        """For pages of other sites too: tools that show or try an API are such pages."""
        visit = Visit(request, context, "", None)
        await _check_rate(context, visit.address)
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        make_content = context.document.compressed if is_compressed else context.document.content
        headers = {"vary": "accept-encoding, host"} | ({"content-encoding": "gzip"} if is_compressed else {})
        response = _with_headers(
            context, request, Response(make_content(visit.base_url), headers=headers, media_type=JSON)
        )
        response.headers.update(OPEN_TO_ALL)
        return response

    async def failed(request: Request, error: Exception) -> Response:
        return await _show_error(context, request, error)

    routes = [
        Route("/static/{version}/{name}", asset),
        Route("/openapi.json", document),
        *(_route(context, one) for one in listed),
    ]
    shown = (PageError, ControlError, StoreUnavailable, HTTPException)
    site = Starlette(routes=routes, exception_handlers=dict.fromkeys(shown, failed))
    site.router.redirect_slashes = False  # it would redirect to the host that the request names
    return site


def _route(context: WebContext, one: Page | Endpoint) -> Route:
    serve = _serve_page(context, one) if isinstance(one, Page) else _serve_endpoint(context, one)
    path = one.path if isinstance(one, Page) else API + one.path
    return Route(path, serve, methods=[one.method])


def _serve_page(context: WebContext, page: Page) -> Serve:
    async def serve(request: Request) -> Response:
        visit = await _visit(context, request)
        try:
            _check_access(visit, page.access)
        except NotSignedIn:
            if request.method not in SAFE_METHODS:
                raise
            return _with_headers(context, request, RedirectResponse(f"/sign-in?next={quote(request.url.path)}", 303))
        response = await page.serve(visit)
        if visit.cookie != _cookie(visit) and visit.cookie.startswith(ANONYMOUS):
            visit.set_cookie(response, visit.cookie)
        return _with_headers(context, request, response)

    return serve


def _serve_endpoint(context: WebContext, endpoint: Endpoint) -> Serve:
    async def serve(request: Request) -> Response:
        visit = await _visit(context, request)
        _check_access(visit, endpoint.access)
        if endpoint.takes is not None:
            result = await endpoint.serve(visit, await visit.json(endpoint.takes))
        else:
            if request.method not in SAFE_METHODS:
                await visit.check_change(request.headers.get(CSRF_HEADER, ""))
            result = await endpoint.serve(visit)
        if isinstance(result, Response):
            return _with_headers(context, request, result)
        if result is None:
            return _with_headers(context, request, Response(status_code=204))
        return _with_headers(context, request, Response(msgspec.json.encode(result), media_type=JSON))

    return serve


async def _visit(context: WebContext, request: Request) -> Visit:
    visit = Visit(request, context, "", None)
    await _check_rate(context, visit.address)
    cookie = _cookie(visit)
    if cookie and not cookie.startswith(ANONYMOUS):
        visit.signed_in = await find_session(context.store, cookie, visit.now_ms)
    if visit.signed_in is None and not cookie.startswith(ANONYMOUS):
        cookie = ANONYMOUS + secrets.token_urlsafe(24)
    visit.cookie = cookie
    request.state.visit = visit
    return visit


def _cookie(visit: Visit) -> str:
    return visit.request.cookies.get(cookie_name(is_secure=visit.base_url.startswith("https://")), "")


def _check_access(visit: Visit, access: Access) -> None:
    if access is Access.ANYONE:
        return
    if access is Access.OPERATOR and not visit.account.is_operator:
        raise NotAllowed
    if not visit.is_signed_in:
        raise NotSignedIn


async def _check_rate(context: WebContext, address: str) -> None:
    ticket = await context.rates.take(f"pages:{network_of(address)}", PAGE_RATE)
    if not ticket.is_granted:
        raise TooMany("Too many requests from your network. Try again in a moment.", ticket.wait_s)


async def _show_error(context: WebContext, request: Request, error: Exception) -> Response:
    found = _page_error(error)
    headers = {"retry-after": str(max(1, round(found.wait_s)))} if isinstance(found, TooMany) else {}
    is_api = request.url.path.startswith(API)
    if is_api or "text/html" not in request.headers.get("accept", ""):
        body = render_error(found.message, found.type)
        return _with_headers(context, request, Response(body, found.status, headers, JSON))
    visit = await _visit_of_error(context, request, found)
    response = visit.page("problem.html", found.status, problem=found, has_menu=visit.cookie != "")
    response.headers.update(headers)
    return _with_headers(context, request, response)


async def _visit_of_error(context: WebContext, request: Request, error: PageError) -> Visit:
    """The visit in which the error happened. At an address without a page, the session is looked up for the menu."""
    visit: Visit | None = getattr(request.state, "visit", None)
    if visit is None and isinstance(error, Missing):
        with contextlib.suppress(PageError, StoreUnavailable):
            visit = await _visit(context, request)
    return visit or Visit(request, context, "", None)


def _page_error(error: Exception) -> PageError:
    match error:
        case PageError():
            return error
        case Throttled():
            return TooMany(error.message, error.wait_s)
        case Unconfirmed() | StoreUncertain():
            return NotConfirmed()
        case ControlError():
            return PageError(error.message)
        case StoreUnavailable():
            return TooMany("The service cannot reach its store at the moment. Try again shortly.", 2.0)
        case HTTPException(status_code=405):
            found = PageError("This address does not take this method.")
            found.status = 405
        case _:
            found = Missing()
    return found


def _with_headers(context: WebContext, request: Request, response: Response) -> Response:
    """Under https, by the site's own address or as a trusted proxy tells it, browsers stay with https."""
    response.headers.update(HEADERS)
    if (context.settings.base_url or "").startswith("https://") or request.scope["scheme"] == "https":
        response.headers["strict-transport-security"] = STRICT_TRANSPORT
    response.headers.setdefault("cache-control", NO_STORE)
    return response
