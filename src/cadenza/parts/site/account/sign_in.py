"""Signing in, by password and second factor, and out. Passkeys are in passkeys.py.

A password gives a session of stage `second_factor` if the account has one, and the code, or a passkey, completes it.
"""

from urllib.parse import quote

from starlette.responses import Response

from cadenza.parts.site.account.sessions import (
    FIRST_PAGE,
    safe_next_path,
    start_session,
)
from cadenza.parts.site.cookies import DEVICE_COOKIE, SESSION_COOKIE
from cadenza.parts.site.errors import NotSignedIn
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Access, Routes, form, get
from cadenza.parts.site.sign_in.sessions import end_session
from cadenza.parts.site.sign_in.sign_in import SignInAttempt
from cadenza.parts.site.tables.second_factors import get_factors
from cadenza.parts.site.visit import Visit

SECOND_FACTOR = "/sign-in/second-factor"


async def sign_in_page(visit: Visit) -> Response:
    next_page = _next_page(visit)
    if visit.signed_in and not visit.error:
        return redirect(next_page) if visit.is_signed_in else _to_second_factor(next_page)
    email, sign_up = visit.typed.get("email", ""), visit.context.settings.sign_up
    return visit.page("sign_in.html", next=next_page, email=email, sign_up=sign_up)


async def second_factor_page(visit: Visit) -> Response:
    if visit.signed_in is None or (visit.is_signed_in and not visit.error):
        return redirect("/sign-in")
    factors = await get_factors(visit.store, visit.signed_in.account.id)
    return visit.page("second_factor.html", next=_next_page(visit), factors=factors)


async def sign_in(visit: Visit, email: str, password: str, next: str = FIRST_PAGE) -> Response:  # noqa: A002 a field
    attempt = SignInAttempt(email, password, visit.address, visit.get_cookie(DEVICE_COOKIE))
    checked = await visit.context.sign_ins.check_password(attempt)
    await start_session(visit, checked.account, checked.stage, checked.require_unchanged)
    next_page = safe_next_path(next)
    return redirect(next_page) if checked.stage == "complete" else _to_second_factor(next_page)


async def give_code(visit: Visit, code: str, next: str = FIRST_PAGE) -> Response:  # noqa: A002 a field
    signed_in = visit.require_session()
    if signed_in.session.stage != "second_factor":
        raise NotSignedIn
    device = visit.get_cookie(DEVICE_COOKIE)
    await visit.context.sign_ins.check_code(signed_in.account, code, device, visit.now_ms)
    await start_session(visit, signed_in.account)
    return redirect(safe_next_path(next))


async def sign_out(visit: Visit) -> None:
    if visit.signed_in:
        await end_session(visit.store, visit.signed_in.session.digest)
    visit.set_cookie(SESSION_COOKIE, "", 0)


def _to_second_factor(next_page: str) -> Response:
    return redirect(f"{SECOND_FACTOR}?next={quote(next_page)}")


def _next_page(visit: Visit) -> str:
    return safe_next_path((visit.typed or visit.query_fields).get("next", FIRST_PAGE))


ROUTES: Routes = (
    get("/sign-in", sign_in_page, Access.ANYONE),
    form("/sign-in", sign_in, "/sign-in", on_error=sign_in_page, access=Access.ANYONE),
    get(SECOND_FACTOR, second_factor_page, Access.ANYONE),
    form(SECOND_FACTOR, give_code, SECOND_FACTOR, on_error=second_factor_page, access=Access.ANYONE),
    form("/sign-out", sign_out, "/sign-in", "signed-out", access=Access.ANYONE),
)
