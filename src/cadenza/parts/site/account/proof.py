"""The recent proof that sensitive changes need: the password, or a passkey, within the last 15 minutes.

A form without one is answered by a page that asks for it and has the fields of the form, so that the same form is sent
again, with the password: then it takes effect. The service keeps nothing in between, and both times the form must come
from one of our own pages. A page that shows secrets leads to /confirm and back; an endpoint answers 403.
"""

from urllib.parse import quote

from starlette.responses import Response

from cadenza.core.errors import ControlError
from cadenza.parts.site.account.sessions import FIRST_PAGE, SECURITY_PAGE, renew_session, safe_next_path
from cadenza.parts.site.errors import NotSignedIn, PageError, ProofNeeded, to_page_error
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.sign_in.sessions import PROOF_MS, find_session
from cadenza.parts.site.tables.second_factors import get_factors
from cadenza.parts.site.visit import Visit

CONFIRM_PAGE = "/confirm"
PASSWORD_FIELD = "proof_password"  # noqa: S105 the name of a field
ASKED_FIELD = "proof_asked_at"  # when the page was shown, in milliseconds
DIGITS_MAX = 15


def to_confirm_page(visit: Visit) -> Response | None:
    """Before a page that needs a recent proof: None if there is one."""
    is_proved = visit.require_session().is_proved(visit.now_ms)
    return None if is_proved else redirect(f"{CONFIRM_PAGE}?next={quote(visit.path)}")


async def check_proof(visit: Visit, page: str) -> Response | None:
    """Before a form of `page` that needs a recent proof: None if there is one, or if the form brings it."""
    fields = await visit.fields()
    password, asked_at = (fields.pop(name, [""])[0] for name in (PASSWORD_FIELD, ASKED_FIELD))
    if asked_at and not _is_recent(asked_at, visit.now_ms):
        return redirect(page, "too-late")
    if password:
        try:
            await visit.context.sign_ins.check_again(visit.account, visit.require_session().session, password)
        except ControlError as error:
            return await _ask(visit, page, to_page_error(error))
        await renew_session(visit, is_proof=True)
        visit.signed_in = await find_session(visit.store, visit.cookie, visit.now_ms, visit.service.settings.retention)
        if visit.signed_in is None:
            raise NotSignedIn
    return None if visit.require_session().is_proved(visit.now_ms) else await _ask(visit, page, ProofNeeded())


async def confirm_page(visit: Visit) -> Response:
    next_page = safe_next_path(visit.query_fields.get("next", SECURITY_PAGE))
    return await _page(visit, {"next": [next_page]}, SECURITY_PAGE)


async def go_on(_visit: Visit, next: str = FIRST_PAGE) -> Response:  # noqa: A002 a field
    return redirect(safe_next_path(next), "confirmed")


async def _ask(visit: Visit, page: str, problem: PageError) -> Response:
    visit.error = "" if isinstance(problem, ProofNeeded) else problem.message
    response = await _page(visit, await visit.fields(), page)
    response.status_code = problem.status
    response.headers.update(problem.headers)
    return response


async def _page(visit: Visit, fields: dict[str, list[str]], back: str) -> Response:
    """`fields` are those of the form that goes on, and `back` is the page that it is on."""
    factors = await get_factors(visit.store, visit.account.id)
    names = {"password_field": PASSWORD_FIELD, "asked_field": ASKED_FIELD}
    return visit.page("confirm.html", action=quote(visit.path), fields=fields, back=back, factors=factors, **names)


def _is_recent(asked_at: str, now_ms: int) -> bool:
    is_number = asked_at.isascii() and asked_at.isdecimal() and len(asked_at) <= DIGITS_MAX
    return is_number and now_ms - int(asked_at) < PROOF_MS


ROUTES: Routes = (
    get(CONFIRM_PAGE, confirm_page),
    form(CONFIRM_PAGE, go_on, SECURITY_PAGE, needs_proof=True),
)
