"""Signing in, by password and second factor, and out. Passkeys are in passkeys.py.

The pages and the endpoints do the same: a password gives a session of stage `second_factor` if the account has one, and
the code, or a passkey, makes it complete.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.sign_in.second_factor import get_factors
from cadenza.control.sign_in.sessions import end_session
from cadenza.control.sign_in.sign_in import SignInAttempt
from cadenza.core.errors import ControlError
from cadenza.store.tables.accounts import Account
from cadenza.web.errors import NotSignedIn
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, get, post
from cadenza.web.session_cookies import (
    FIRST_PAGE,
    Step,
    current,
    device_cookie,
    enter,
    enter_checked,
    fill,
    own_page,
    second_factor_page,
    status_of,
)
from cadenza.web.visit import Visit


class SignInForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account and its password, and the page to go to."""

    email: str
    password: str
    next: str = FIRST_PAGE


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account and its password."""

    email: str
    password: str


class CodeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the second factor, and the page to go to."""

    code: str
    next: str = FIRST_PAGE


class GivenCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the authenticator app, or a recovery code."""

    code: str


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


async def sign_in_page(visit: Visit) -> Response:
    next_page = own_page(visit.request.query_params.get("next", FIRST_PAGE))
    if visit.is_signed_in:
        return redirect(next_page)
    if visit.signed_in:
        return second_factor_page(next_page)
    return _show(visit, next_page)


async def sign_in(visit: Visit) -> Response:
    form = await visit.form(SignInForm)
    next_page = own_page(form.next)
    try:
        checked = await visit.context.sign_ins.check_password(_attempt(visit, form.email, form.password))
        response = redirect(next_page) if checked.stage == "complete" else second_factor_page(next_page)
        await enter_checked(visit, checked, response)
    except ControlError as error:
        return _show(visit, next_page, status_of(error), form.email, error.message)
    return response


async def second_factor_form(visit: Visit) -> Response:
    next_page = own_page(visit.request.query_params.get("next", FIRST_PAGE))
    if visit.signed_in is None or visit.is_signed_in:
        return redirect("/sign-in")
    return await _show_code(visit, next_page)


async def give_code(visit: Visit) -> Response:
    form = await visit.form(CodeForm)
    next_page = own_page(form.next)
    try:
        account = await _check_code(visit, form.code)
    except ControlError as error:
        return await _show_code(visit, next_page, status_of(error), error.message)
    response = redirect(next_page)
    await enter(visit, account, "complete", response)
    return response


async def sign_out(visit: Visit) -> Response:
    await visit.form(Empty)
    response = redirect("/sign-in", "signed-out")
    await _leave(visit, response)
    return response


async def api_sign_in(visit: Visit, given: Credentials) -> Response:
    checked = await visit.context.sign_ins.check_password(_attempt(visit, given.email, given.password))
    response = Response()
    return fill(response, await enter_checked(visit, checked, response))


async def api_give_code(visit: Visit, given: GivenCode) -> Response:
    account = await _check_code(visit, given.code)
    response = Response()
    return fill(response, await enter(visit, account, "complete", response))


async def api_sign_out(visit: Visit) -> Response:
    response = Response(status_code=204)
    await _leave(visit, response)
    return response


async def _check_code(visit: Visit, code: str) -> Account:
    signed_in = current(visit)
    if signed_in.session.stage != "second_factor":
        raise NotSignedIn
    await visit.context.sign_ins.check_code(signed_in.account, code, device_cookie(visit), visit.now_ms)
    return signed_in.account


async def _leave(visit: Visit, response: Response) -> None:
    if visit.signed_in:
        await end_session(visit.context.store, visit.signed_in.session.digest)
    visit.clear_cookie(response)


def _attempt(visit: Visit, email: str, password: str) -> SignInAttempt:
    return SignInAttempt(email, password, visit.address, device_cookie(visit))


def _show(visit: Visit, next_page: str, status: int = 200, email: str = "", error: str = "") -> Response:
    sign_up = visit.context.settings.sign_up
    return visit.page("sign_in.html", status, next=next_page, email=email, error=error, sign_up=sign_up)


async def _show_code(visit: Visit, next_page: str, status: int = 200, error: str = "") -> Response:
    factors = await get_factors(visit.context.store, current(visit).account.id)
    return visit.page("second_factor.html", status, next=next_page, error=error, factors=factors)


ROUTES: Routes = (
    get("/sign-in", sign_in_page, Access.ANYONE),
    post("/sign-in", sign_in, Access.ANYONE),
    get("/sign-in/second-factor", second_factor_form, Access.ANYONE),
    post("/sign-in/second-factor", give_code, Access.ANYONE),
    post("/sign-out", sign_out, Access.ANYONE),
    Endpoint(
        "POST",
        "/sign-in",
        "Sign in by password. The stage says whether a second factor is needed.",
        api_sign_in,
        takes=Credentials,
        returns=Step,
        access=Access.ANYONE,
    ),
    Endpoint(
        "POST",
        "/sign-in/second-factor",
        "Give a code of the authenticator app, or a recovery code.",
        api_give_code,
        takes=GivenCode,
        returns=Step,
        access=Access.ANYONE,
    ),
    Endpoint("POST", "/sign-out", "Sign out in this browser.", api_sign_out, access=Access.ANYONE),
)
