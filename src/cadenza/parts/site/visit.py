"""One request for a page or for /platform/api: who asks, the token that its forms carry, and what it sent.

The session secret is in a cookie that scripts cannot read. Before sign-in there is an anonymous cookie, which only
binds the CSRF token of a form to the browser that got the form. A script sends an access token instead of a cookie.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cadenza import clock
from cadenza.core.mistakes import describe_mistake
from cadenza.core.orders import fields_of
from cadenza.core.rates import Rate
from cadenza.core.records import Operator, Owner
from cadenza.pace import Pace
from cadenza.parts.site.account.archive_turns import ArchiveTurns
from cadenza.parts.site.chat.markdown.process import MarkdownRenderer
from cadenza.parts.site.cookies import (
    CSRF_HEADER,
    SESSION_COOKIE,
    Origin,
    cookie_name,
    csrf_token,
    is_own_request,
    read_cookie,
)
from cadenza.parts.site.docs.reference import ApiDocument, Reference
from cadenza.parts.site.eraser import Eraser
from cadenza.parts.site.errors import BadForm, NotSignedIn, TooMany, WrongOrigin
from cadenza.parts.site.mailer import EmailText, Mailer
from cadenza.parts.site.operator.ledger_check import LedgerCheck
from cadenza.parts.site.operator.reading import UseHistory
from cadenza.parts.site.render import Assets, Renderer
from cadenza.parts.site.settings import PlatformSettings
from cadenza.parts.site.sign_in.passkeys import Passkeys
from cadenza.parts.site.sign_in.sessions import SignedIn
from cadenza.parts.site.sign_in.sign_in import SignIns
from cadenza.parts.site.tokens import TokenUser
from cadenza.service import Service
from cadenza.store.tables.accounts import Account

CHANGE_RATE = Rate(1.0, 120)  # forms and changing requests, for each account
THINGS_RATE = Rate(1.0, 60)  # changes of the keys, tokens or notes of one account
CSRF_FIELD = "csrf"
FIELDS_MAX = 200
STRANGER_BYTES_MAX = 16 * 1024  # of a form without a session: one with the longest password, each byte of it escaped
FORM = "application/x-www-form-urlencoded"
SAFE_METHODS = ("GET", "HEAD")

T = TypeVar("T", bound=msgspec.Struct)
Made = TypeVar("Made")


class Panel(msgspec.Struct, frozen=True):
    """What a part shows on a page of another: its template gets the values of the page, and its own."""

    page: str  # the path of the page, as its route has it
    template: str
    values: Callable[["Visit"], Awaitable[Mapping[str, Any]]]
    place: str = "main"  # on the page, which has {{ panels.main }} there


class WebContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the site makes once, for every page. Without `mailer`, the service sends no e-mail."""

    service: Service
    settings: PlatformSettings
    markdown: MarkdownRenderer
    panels: tuple[Panel, ...]
    notes: Mapping[str, str]
    assets: Assets
    renderer: Renderer
    ledger_check: LedgerCheck
    use_history: UseHistory
    document: ApiDocument
    reference: Reference
    sign_ins: SignIns
    passkeys: Passkeys
    mailer: Mailer | None
    log_eraser: Eraser
    account_eraser: Eraser
    archive_turns: ArchiveTurns
    export_pace: Pace = msgspec.field(default_factory=Pace)  # of all files and archives that are downloaded

    def of(self, kind: type[Made]) -> Made | None:
        """What a part has made in its `run`, for its pages."""
        made = self.service.made.get(kind)
        return made if isinstance(made, kind) else None

    def send_notice(self, to: str, notice: EmailText, detail: str = "") -> None:
        """Notify the owner of an account of a change by e-mail, if e-mail is configured."""
        if self.mailer:
            self.mailer.send_notice(to, notice, detail)


class Visit:
    """A request, and what is known about the visitor. `cookie` is what the browser holds, or will hold."""

    def __init__(self, request: Request, context: WebContext) -> None:
        self.request = request
        self.context = context
        self.service = context.service
        self.store = context.service.store
        self.cookie = ""
        self.signed_in: SignedIn | None = None
        self.token_user: TokenUser | None = None  # instead of a session
        self.now_ms = clock.now_ms()
        self.query_fields: dict[str, str] = request.state.query
        self.error = ""  # what was wrong with a form, whose page is shown again
        self.typed: Mapping[str, Any] = {}  # into that form
        self._fields: dict[str, list[str]] | None = None
        self._new_cookies: dict[str, tuple[str, int]] = {}

    @property
    def account(self) -> Account:
        """The account of a complete session, or of an access token."""
        if self.token_user:
            return self.token_user.account
        if not self.is_signed_in:
            raise NotSignedIn
        return self.require_session().account

    @property
    def owner(self) -> Owner:
        """Whoever does what this visit does, as the owner of the account."""
        return Owner(self.account.id, self.account.email, self._token)

    @property
    def operator(self) -> Operator:
        """The same, as an operator."""
        assert self.account.is_operator, "the paths of operators are for them alone"
        return Operator(self.account.email, self._token)

    @property
    def _token(self) -> str | None:
        return self.token_user.token.prefix if self.token_user else None

    @property
    def is_signed_in(self) -> bool:
        return self.signed_in is not None and self.signed_in.session.stage == "complete"

    def require_session(self) -> SignedIn:
        """The session of this browser and its account, even if the second factor is not given yet."""
        if self.signed_in is None:
            raise NotSignedIn
        return self.signed_in

    @property
    def csrf(self) -> str:
        """The token that every form and every changing request of this browser must carry."""
        return csrf_token(self.cookie)

    @property
    def address(self) -> str:
        """The client's IP address; behind a trusted proxy, the one that the proxy reports."""
        return self.request.client.host if self.request.client else ""

    @property
    def path(self) -> str:
        """The path of the request, decoded."""
        return str(self.request.scope["path"])

    @property
    def base_url(self) -> str:
        """The URL of the site, without a trailing slash."""
        return self.context.settings.base_url or f"{self.request.url.scheme}://{self.request.url.netloc}"

    @property
    def is_secure(self) -> bool:
        return self.base_url.startswith("https://")

    def path_param(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def limit(self, what: str, rate: Rate, message: str) -> None:
        """429 with this message for an account that does this too often."""
        ticket = await self.service.shared.rates.take(f"{what}:{self.account.id}", rate)
        if not ticket.is_granted:
            raise TooMany(message, ticket.wait_s)

    async def limit_changes(self, things: str) -> None:
        """429 for an account that changes its keys, tokens or notes too often."""
        await self.limit(things, THINGS_RATE, f"Too many changes of {things} at once. Try again in a moment.")

    async def check_change(self, token: str) -> None:
        """403 unless a changing request comes from one of our own pages: by its origin, and by its token.

        429 for an account that changes things too often, from any number of networks: most changes write to the audit
        log. Requests from other sites do not count, or any page could use up the limit of its visitors. An access
        token is no cookie: a page of another site cannot send it, so it needs no such check.
        """
        if self.token_user is None:
            self._check_origin(token)
        if self.token_user or self.is_signed_in:
            await self.limit("changes", CHANGE_RATE, "Too many changes at once. Try again in a moment.")

    def _check_origin(self, token: str) -> None:
        headers = self.request.headers
        base_url = self.context.settings.base_url
        origin = Origin(headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host"), base_url)
        if not is_own_request(origin, token, self.cookie):
            raise WrongOrigin

    def page(self, template: str, **values: object) -> HTMLResponse:
        """Render a template. It also gets the visit, its account, the note of a redirect and the error of a form."""
        return self.context.renderer.page(template, {**self._usual_values(), **values})

    async def page_with_panels(self, path: str, template: str, **values: object) -> HTMLResponse:
        """Render a template with what parts show on this page. The path is that of its route."""
        panels = defaultdict[str, Markup](Markup)
        for panel in self.context.panels:
            if panel.page == path:
                shown = {**self._usual_values(), **values, **await panel.values(self)}
                panels[panel.place] += Markup(self.context.renderer.part(panel.template, shown))  # noqa: S704 a template
        return self.page(template, panels=panels, **values)

    def _usual_values(self) -> dict[str, object]:
        account = self.account if self.is_signed_in else None
        note = self.context.notes.get(self.query_fields.get("note", ""))
        return {"visit": self, "account": account, "note": note, "error": self.error}

    async def form(self, kind: type[T]) -> T:
        """The fields of a form, checked. Unknown fields are refused; a field of type list takes every value.

        A field that is a parameter of the path is read from there.
        """
        fields = await self.fields()
        lists = {field.encode_name for field in msgspec.structs.fields(kind) if "list" in str(field.type)}
        values = {name: found if name in lists else found[0] for name, found in fields.items()}
        in_path = {name: text for name, text in self.request.path_params.items() if name in kind.__struct_fields__}
        return self.convert(values | in_path, kind)

    async def order_form(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """What was typed into the form of an order. Unknown fields are refused."""
        fields, known = await self.fields(), {one.name: one for one in fields_of(kind)}
        if unknown := fields.keys() - known:
            raise BadForm(f"The form has no field {min(unknown)}.")
        return {name: found if known[name].is_list else found[0] for name, found in fields.items()}

    async def fields(self) -> dict[str, list[str]]:
        """The fields of a form of one of our own pages. They are checked once: a proof makes a new token.

        Only the encoding of our own forms is read. A multipart form names the codec of its text, and some are slow.
        """
        if self._fields is None:
            self._fields = await self._read_fields()
        return self._fields

    async def _read_fields(self) -> dict[str, list[str]]:
        encoding = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if encoding not in ("", FORM):
            raise BadForm(f"A form is sent as {FORM}.")
        body = await self.request.body()
        if self.signed_in is None and len(body) > STRANGER_BYTES_MAX:
            raise BadForm("This form is too large: without a session it has at most 16 KiB.")
        fields = _read_form(body) if encoding else {}
        await self.check_change(fields.pop(CSRF_FIELD, [""])[0])
        return fields

    async def json(self, kind: type[T]) -> T:
        """The JSON body of an API request, checked."""
        await self.check_change(self.request.headers.get(CSRF_HEADER, ""))
        body = await self.request.body()
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.ValidationError as error:
            raise BadForm(f"{describe_mistake(str(error))}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadForm(f"The body is not valid JSON: {error}.") from None
        except RecursionError:
            raise BadForm("The body is nested too deeply.") from None

    def query(self, kind: type[T]) -> T:
        """The query parameters, checked. Unknown ones are ignored; an empty one counts as absent."""
        names = {field.encode_name for field in msgspec.structs.fields(kind)}
        return self.convert({name: text for name, text in self.query_fields.items() if name in names}, kind)

    def convert(self, values: dict[str, Any], kind: type[T]) -> T:
        """What was typed, as a record; 400 if it is not valid."""
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            raise BadForm(f"{describe_mistake(str(error))}.") from None

    def get_cookie(self, name: str) -> str:
        return read_cookie(self.request.headers.get("cookie", ""), cookie_name(name, is_secure=self.is_secure))

    def set_cookie(self, name: str, value: str, lifetime_s: int) -> None:
        """Have the reply set a cookie that scripts cannot read. A lifetime of zero removes it."""
        self._new_cookies[name] = value, lifetime_s

    def set_session_cookie(self, secret: str) -> None:
        self.cookie = secret
        self.set_cookie(SESSION_COOKIE, secret, self.service.settings.retention.session_ms // 1000)

    def add_cookies(self, response: Response) -> None:
        """Put the new cookies on the reply."""
        for name, (value, lifetime_s) in self._new_cookies.items():
            full_name = cookie_name(name, is_secure=self.is_secure)
            response.set_cookie(full_name, value, lifetime_s, secure=self.is_secure, httponly=True, samesite="lax")


def _read_form(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise BadForm(f"A form has at most {FIELDS_MAX} fields.") from None
