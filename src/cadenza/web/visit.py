"""One request for a page or for /platform/api: who asks, the token that its forms carry, and what it sent.

The session is in a cookie that scripts cannot read. Before sign-in there is a cookie too, without meaning, which only
ties the token of a form to the browser that got the form.
"""

import time
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cadenza.control.sign_in.sessions import SignedIn
from cadenza.core.rates import Rate
from cadenza.store.tables.accounts import Account
from cadenza.web.context import WebContext
from cadenza.web.cookies import CSRF_HEADER, Origin, cookie_name, csrf_token, is_own_request
from cadenza.web.errors import BadForm, NotSignedIn, TooMany, WrongOrigin
from cadenza.web.render import NOTES

CHANGE_RATE = Rate(1.0, 120)  # forms and changing requests of one account
CSRF_FIELD = "csrf"
FORM = "application/x-www-form-urlencoded"
SAFE_METHODS = ("GET", "HEAD")
LONGEST_S = 30 * 24 * 60 * 60

T = TypeVar("T", bound=msgspec.Struct)


class Visit:
    """A request, and what is known about the visitor. `cookie` is what the browser holds, or will hold."""

    def __init__(self, request: Request, context: WebContext, cookie: str, signed_in: SignedIn | None) -> None:
        self.request = request
        self.context = context
        self.cookie = cookie
        self.signed_in = signed_in
        self.now_ms = time.time_ns() // 1_000_000

    @property
    def account(self) -> Account:
        """The account of a complete session."""
        if not self.is_signed_in or self.signed_in is None:
            raise NotSignedIn
        return self.signed_in.account

    @property
    def is_signed_in(self) -> bool:
        return self.signed_in is not None and self.signed_in.session.stage == "complete"

    @property
    def csrf(self) -> str:
        """The token that every form and every changing request of this browser must carry."""
        return csrf_token(self.cookie)

    @property
    def agent(self) -> str:
        return self.request.headers.get("user-agent", "")

    @property
    def address(self) -> str:
        """The client's address, as a trusted proxy tells it."""
        return self.request.client.host if self.request.client else ""

    @property
    def base_url(self) -> str:
        """The address of the site, without a slash at its end."""
        return self.context.settings.base_url or f"{self.request.url.scheme}://{self.request.url.netloc}"

    async def check_change(self, token: str) -> None:
        """403 unless a changing request comes from one of our own pages: by its origin, and by its token.

        429 for an account that changes things too often, from any number of networks: most changes write to the audit
        log. Requests from other sites do not count, or any page could use up the limit of its visitors.
        """
        self._check_origin(token)
        if self.is_signed_in:
            ticket = await self.context.rates.take(f"changes:{self.account.id}", CHANGE_RATE)
            if not ticket.is_granted:
                raise TooMany("Too many changes at once. Try again in a moment.", ticket.wait_s)

    def _check_origin(self, token: str) -> None:
        headers = self.request.headers
        base_url = self.context.settings.base_url
        origin = Origin(headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host"), base_url)
        if not is_own_request(origin, token, self.cookie):
            raise WrongOrigin

    def page(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Render a template, which also knows the visit, its account and the note of a redirect."""
        account = self.account if self.is_signed_in else None
        note = NOTES.get(self.request.query_params.get("note", ""))
        return self.context.renderer.page(template, status, {"visit": self, "account": account, "note": note, **values})

    async def form(self, kind: type[T]) -> T:
        """The fields of a form, checked. Unknown fields are refused; a field of type list takes every value.

        Only the encoding of our own forms is read. A multipart form names the codec of its text, and some are slow.
        """
        if self.request.headers.get("content-type", "").partition(";")[0].strip().lower() not in ("", FORM):
            raise BadForm(f"A form is sent as {FORM}.")
        async with self.request.form(max_files=0, max_fields=200) as given:
            fields = {name: given.getlist(name) for name in given}
        await self.check_change(str((fields.pop(CSRF_FIELD, None) or [""])[0]))
        lists = {field.encode_name for field in msgspec.structs.fields(kind) if "list" in str(field.type)}
        values = {name: found if name in lists else found[0] for name, found in fields.items()}
        return _convert(values, kind)

    async def json(self, kind: type[T]) -> T:
        """The JSON body of an API request, checked."""
        await self.check_change(self.request.headers.get(CSRF_HEADER, ""))
        body = await self.request.body()
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadForm(f"The body is not as expected: {error}.") from None
        except RecursionError:
            raise BadForm("The body is nested too deeply.") from None

    def query(self, kind: type[T]) -> T:
        """The parameters of the address, checked. Unknown ones are ignored; an empty one counts as absent."""
        names = {field.encode_name for field in msgspec.structs.fields(kind)}
        given = self.request.query_params
        return _convert({name: given[name] for name in names if given.get(name)}, kind)

    def set_cookie(self, response: Response, secret: str) -> None:
        self.cookie = secret
        is_secure = self.base_url.startswith("https://")
        response.set_cookie(
            cookie_name(is_secure=is_secure), secret, LONGEST_S, secure=is_secure, httponly=True, samesite="lax"
        )

    def clear_cookie(self, response: Response) -> None:
        is_secure = self.base_url.startswith("https://")
        response.delete_cookie(cookie_name(is_secure=is_secure), secure=is_secure, httponly=True, samesite="lax")


def _convert(values: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadForm(f"The form is not as expected: {error}.") from None
