"""Signing in, by password and second factor, and out; and giving the password again. Passkeys are in passkeys.py.

A password gives a session of stage `second_factor` if the account has one, and the code, or a passkey, completes it.
Sensitive changes need a recent proof: the password or a passkey, within the last 15 minutes. A page without one leads
to /confirm and back; an endpoint answers 403 and says what to do.
"""

from urllib.parse import quote

import msgspec
from starlette.responses import Response

from cadenza.control.sign_in.second_factor import get_factors
from cadenza.control.sign_in.sessions import end_session
from cadenza.control.sign_in.sign_in import SignInAttempt
from cadenza.web.account.sessions import (
    FIRST_PAGE,
    SECURITY_PAGE,
    SignInStatus,
    renew_session,
    safe_next_path,
    start_session,
)
from cadenza.web.cookies import DEVICE_COOKIE, SESSION_COOKIE
from cadenza.web.errors import NotSignedIn
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Routes, form, get
from cadenza.web.visit import Visit

SECOND_FACTOR = "/sign-in/second-factor"


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account and its password."""

    email: str
    password: str


class SignInForm(Credentials, frozen=True, forbid_unknown_fields=True):
    """An account and its password, and the page to go to."""

    next: str = FIRST_PAGE


class GivenCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the authenticator app, or a recovery code."""

    code: str


class CodeForm(GivenCode, frozen=True, forbid_unknown_fields=True):
    """A code of the second factor, and the page to go to."""

    next: str = FIRST_PAGE


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The password of the account that is signed in."""

    password: str


class ProofForm(Proof, frozen=True, forbid_unknown_fields=True):
    """The password, and the page to go back to."""

    next: str = FIRST_PAGE


async def sign_in_page(visit: Visit, error: str = "", typed: SignInForm | None = None) -> Response:
    next_page = _next_page(visit, typed)
    if visit.signed_in and not error:
        return redirect(next_page) if visit.is_signed_in else _to_second_factor(next_page)
    email, sign_up = typed.email if typed else "", visit.context.settings.sign_up
    return visit.page("sign_in.html", next=next_page, email=email, error=error, sign_up=sign_up)


async def second_factor_page(visit: Visit, error: str = "", typed: CodeForm | None = None) -> Response:
    if visit.signed_in is None or (visit.is_signed_in and not error):
        return redirect("/sign-in")
    factors = await get_factors(visit.store, visit.signed_in.account.id)
    return visit.page("second_factor.html", next=_next_page(visit, typed), error=error, factors=factors)


async def confirm_page(visit: Visit, error: str = "", typed: ProofForm | None = None) -> Response:
    factors = await get_factors(visit.store, visit.account.id)
    return visit.page("confirm.html", next=_next_page(visit, typed, SECURITY_PAGE), error=error, factors=factors)


async def sign_in(visit: Visit, given: Credentials) -> SignInStatus:
    attempt = SignInAttempt(given.email, given.password, visit.address, visit.get_cookie(DEVICE_COOKIE))
    checked = await visit.context.sign_ins.check_password(attempt)
    return await start_session(visit, checked.account, checked.stage, checked.require_unchanged)


async def give_code(visit: Visit, given: GivenCode) -> SignInStatus:
    signed_in = visit.require_session()
    if signed_in.session.stage != "second_factor":
        raise NotSignedIn
    device = visit.get_cookie(DEVICE_COOKIE)
    await visit.context.sign_ins.check_code(signed_in.account, given.code, device, visit.now_ms)
    return await start_session(visit, signed_in.account)


async def prove(visit: Visit, given: Proof) -> SignInStatus:
    await visit.context.sign_ins.check_again(visit.account, visit.require_session().session, given.password)
    return await renew_session(visit, is_proof=True)


async def sign_out(visit: Visit) -> None:
    if visit.signed_in:
        await end_session(visit.store, visit.signed_in.session.digest)
    visit.set_cookie(SESSION_COOKIE, "", 0)


async def sign_in_by_form(visit: Visit, typed: SignInForm) -> Response:
    status, next_page = await sign_in(visit, typed), safe_next_path(typed.next)
    return redirect(next_page) if status.stage == "complete" else _to_second_factor(next_page)


async def give_code_by_form(visit: Visit, typed: CodeForm) -> Response:
    await give_code(visit, typed)
    return redirect(safe_next_path(typed.next))


async def prove_by_form(visit: Visit, typed: ProofForm) -> Response:
    await prove(visit, typed)
    return redirect(safe_next_path(typed.next), "confirmed")


def _to_second_factor(next_page: str) -> Response:
    return redirect(f"{SECOND_FACTOR}?next={quote(next_page)}")


def _next_page(visit: Visit, typed: SignInForm | CodeForm | ProofForm | None = None, usual: str = FIRST_PAGE) -> str:
    return safe_next_path(typed.next if typed else visit.query_fields.get("next", usual))


ROUTES: Routes = (
    get("/sign-in", sign_in_page, Access.ANYONE),
    form("/sign-in", sign_in_by_form, "/sign-in", on_error=sign_in_page, access=Access.ANYONE),
    get(SECOND_FACTOR, second_factor_page, Access.ANYONE),
    form(SECOND_FACTOR, give_code_by_form, SECOND_FACTOR, on_error=second_factor_page, access=Access.ANYONE),
    form("/sign-out", sign_out, "/sign-in", "signed-out", access=Access.ANYONE),
    get("/confirm", confirm_page),
    form("/confirm", prove_by_form, "/confirm", on_error=confirm_page),
)
