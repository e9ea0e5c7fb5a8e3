"""How a module of the site declares what it serves: pages, forms, and endpoints of /platform/api.

A page is a function of the visit that returns a response. An endpoint is a function of the visit, and of the decoded
body if it takes one, that returns a record; the record becomes JSON. A form calls the same function as its endpoint and
then redirects to a page, or calls one of its own that returns a response. Bodies and replies are described by the
annotations of the function, and the OpenAPI document is made from the table. What only a form takes needs no record:
its fields are the parameters of the function. Everything below /operator is for operators. An endpoint with a scope can
also be used with an access token that has it; without one, only by our pages.
"""

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Self

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from cadenza.core.errors import ControlError
from cadenza.core.orders import FieldMistake, fields_of, read_order, typed_values
from cadenza.parts.site.errors import Missing, NotConfirmed, NotSignedIn, PageError, to_page_error
from cadenza.parts.site.render import redirect
from cadenza.parts.site.visit import Visit

JSON = "application/json"
NOT_IN_FORMS = (Missing, NotConfirmed, NotSignedIn)  # errors with a page of their own

ServePage = Callable[[Visit], Awaitable[Response]]
Serve = Callable[..., Awaitable[Any]]


class Access(Enum):
    """Who may use a page or an endpoint."""

    ANYONE = auto()
    ACCOUNT = auto()  # signed in
    OPERATOR = auto()


class Page(msgspec.Struct, frozen=True):
    """A page, or a form that a page sends. A path may have parameters: /keys/{key_id}.

    With `proof_page`, it needs a recent proof (account/proof.py). That is the page itself, or the page of the form.
    """

    method: str
    path: str
    serve: ServePage
    access: Access
    proof_page: str | None = None


class ApiEndpoint(msgspec.Struct, frozen=True):
    """An endpoint of /platform/api."""

    method: str
    path: str  # below /platform/api
    summary: str
    serve: Serve
    access: Access
    takes: type[msgspec.Struct] | None = None  # the body; for a GET, the query parameters
    returns: Any = None
    body: str | None = None  # the schema of openapi.json for what the gateway reads in place of the site
    media_type: str = JSON  # of the reply; another one is described without a schema
    needs_proof: bool = False  # of a browser; a token was made after such a proof
    scope: str | None = None  # of control/tokens.py; None: not for access tokens


class Button(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


class Action(msgspec.Struct, frozen=True):
    """A function of the visit, and what it takes besides: nothing, one record, or the fields of one as parameters."""

    serve: Serve
    takes: type[msgspec.Struct] | None
    has_fields: bool = False

    @classmethod
    def of(cls, serve: Serve) -> Self:
        _, *others = inspect.signature(serve).parameters.values()
        if not others:
            return cls(serve, None)
        kind = others[0].annotation
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return cls(serve, kind)
        fields = [
            (one.name, one.annotation, msgspec.NODEFAULT if one.default is one.empty else one.default) for one in others
        ]
        return cls(serve, msgspec.defstruct(serve.__name__, fields, forbid_unknown_fields=True), has_fields=True)

    async def run(self, visit: Visit, given: msgspec.Struct | None) -> Any:  # noqa: ANN401 what the function returns
        if given is None or self.takes is None:
            return await self.serve(visit)
        return await (
            self.serve(visit, **msgspec.structs.asdict(given)) if self.has_fields else self.serve(visit, given)
        )


Routes = tuple[Page | ApiEndpoint, ...]


def get(path: str, serve: ServePage, access: Access | None = None, *, needs_proof: bool = False) -> Page:
    return Page("GET", path, serve, access or _usual_access(path), path if needs_proof else None)


def post(path: str, serve: ServePage, access: Access | None = None, proof_page: str | None = None) -> Page:
    return Page("POST", path, serve, access or _usual_access(path), proof_page)


def form(  # noqa: PLR0913 a declaration, whose parts are named
    path: str,
    action: Serve,
    page: str,
    note: str = "",
    *,
    on_error: ServePage | None = None,
    access: Access | None = None,
    needs_proof: bool = False,
) -> Page:
    """A form of `page`. It calls `action`, then leads back to the page with a note, unless that returns a response.

    `on_error` shows the page again, with the message and what was typed, which are in the visit; without it, errors
    have a page of their own.
    """
    call = Action.of(action)
    takes = call.takes or Button

    async def serve(visit: Visit) -> Response:
        is_order = bool(fields_of(takes))
        given = None if is_order else await visit.form(takes)
        typed = asdict(given) if given else await visit.order_form(takes)
        try:
            result = await call.run(visit, given or read_order(takes, typed))
        except (ControlError, PageError) as error:
            if isinstance(error, FieldMistake):
                error = error.named(error.field.shown.label)
            found = to_page_error(error)
            if on_error is None or isinstance(found, NOT_IN_FORMS):
                raise
            visit.error, visit.typed = found.message, typed_values(takes) | typed if is_order else typed
            response = await on_error(visit)
            response.status_code = found.status
            response.headers.update(found.headers)
            return response
        is_response = isinstance(result, Response)
        return result if is_response else redirect(page.format(**visit.request.path_params), note)

    return post(path, serve, access, page if needs_proof else None)


def endpoint(  # noqa: PLR0913 a declaration, whose parts are named
    method: str,
    path: str,
    summary: str,
    serve: Serve,
    scope: str | None = None,
    *,
    access: Access | None = None,
    returns: str | None = None,
    body: str | None = None,
    media_type: str = JSON,
    needs_proof: bool = False,
) -> ApiEndpoint:
    """An endpoint. `returns` and `body` name a schema of openapi.json, where the function has no record for it."""
    found = inspect.signature(serve).return_annotation
    returned = returns or (None if found is Response else found)
    who = access or _usual_access(path)
    takes = Action.of(serve).takes
    return ApiEndpoint(method, path, summary, serve, who, takes, returned, body, media_type, needs_proof, scope)


def _usual_access(path: str) -> Access:
    return Access.OPERATOR if path.startswith("/operator") else Access.ACCOUNT
