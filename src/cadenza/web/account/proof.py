"""Sensitive changes need a recent proof: the password or a passkey, within the last 15 minutes.

A page without one leads to /confirm and back; an endpoint answers 403 and says what to do.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec
from starlette.responses import RedirectResponse, Response

from cadenza.control.sign_in.second_factor import get_factors
from cadenza.core.errors import ControlError
from cadenza.web.errors import PageError
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.session_cookies import FIRST_PAGE, Step, current, fill, own_page, rotate, status_of
from cadenza.web.visit import SAFE_METHODS, Visit

SECURITY_PAGE = "/settings/security"


class ProofNeeded(PageError):
    """The session is too old for this change."""

    status = 403
    type = "permission_error"
    title = "Confirm that it is you"

    def __init__(self) -> None:
        super().__init__("Give your password again first: POST it to /platform/api/proof.")


class ProofForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The password, and the page to go back to."""

    password: str
    next: str = FIRST_PAGE


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The password of the account that is signed in."""

    password: str


def with_proof(
    serve: Callable[[Visit], Awaitable[Response]], form_page: str = SECURITY_PAGE
) -> Callable[[Visit], Awaitable[Response]]:
    """A page that needs a recent proof. After it, a form leads back to the page that it stands on."""

    async def guarded(visit: Visit) -> Response:
        if not current(visit).is_proved(visit.now_ms):
            is_form = visit.request.method not in SAFE_METHODS
            back = form_page.format(**visit.request.path_params) if is_form else visit.request.url.path
            return RedirectResponse(f"/confirm?next={quote(back)}", 303)
        return await serve(visit)

    return guarded


def require_proof(visit: Visit) -> None:
    """For an endpoint."""
    if not current(visit).is_proved(visit.now_ms):
        raise ProofNeeded


async def confirm_page(visit: Visit) -> Response:
    return await _show(visit, own_page(visit.request.query_params.get("next", SECURITY_PAGE)))


async def confirm(visit: Visit) -> Response:
    form = await visit.form(ProofForm)
    next_page = own_page(form.next)
    try:
        await visit.context.sign_ins.check_again(visit.account, current(visit).session, form.password)
    except ControlError as error:
        return await _show(visit, next_page, status_of(error), error.message)
    response = redirect(next_page, "confirmed")
    await rotate(visit, response, is_proof=True)
    return response


async def api_prove(visit: Visit, given: Proof) -> Response:
    await visit.context.sign_ins.check_again(visit.account, current(visit).session, given.password)
    response = Response()
    return fill(response, await rotate(visit, response, is_proof=True))


async def _show(visit: Visit, next_page: str, status: int = 200, error: str = "") -> Response:
    factors = await get_factors(visit.context.store, visit.account.id)
    return visit.page("confirm.html", status, next=next_page, error=error, factors=factors)


ROUTES: Routes = (
    get("/confirm", confirm_page),
    post("/confirm", confirm),
    Endpoint("POST", "/proof", "Give the password again, for changes that need it.", api_prove, Proof, Step),
)
