"""Setting up the second factor: the authenticator app and the recovery codes. Everything here needs a recent proof."""

import msgspec
import segno
from markupsafe import Markup
from starlette.responses import Response

from cadenza.control.email.messages import APP_ADDED, APP_REMOVED, CODES_RENEWED
from cadenza.control.sign_in.second_factor import (
    begin_totp,
    confirm_totp,
    enrolment_of,
    remove_totp,
    renew_codes,
)
from cadenza.core.errors import ControlError
from cadenza.web.account.sessions import SECURITY_PAGE, renew_session
from cadenza.web.account.sign_in import GivenCode
from cadenza.web.errors import Missing
from cadenza.web.render import redirect
from cadenza.web.routes import Routes, form, get
from cadenza.web.visit import Visit

APP_PAGE = "/settings/security/app"


class Codes(msgspec.Struct, frozen=True):
    """Recovery codes, shown this once. None if the account has some already."""

    recovery_codes: list[str]
    csrf: str


async def app_page(visit: Visit, error: str = "", _typed: GivenCode | None = None) -> Response:
    try:
        enrolment = await enrolment_of(visit.store, visit.context.sign_ins.sealer, visit.account)
    except ControlError:
        return redirect(SECURITY_PAGE)
    picture = Markup(segno.make(enrolment.uri, error="m").svg_inline(scale=5, border=3, light="#fff"))  # noqa: S704 made here
    return visit.page("authenticator.html", picture=picture, text=enrolment.text, error=error)


async def confirm(visit: Visit, given: GivenCode) -> Codes:
    codes = await confirm_totp(visit.store, visit.context.sign_ins.sealer, visit.account, given.code, visit.now_ms)
    visit.context.send_notice(visit.account.email, APP_ADDED)
    return await with_codes(visit, codes)


async def remove(visit: Visit) -> Codes:
    if not await remove_totp(visit.store, visit.account, visit.now_ms):
        raise Missing("There is no authenticator app.")
    visit.context.send_notice(visit.account.email, APP_REMOVED)
    return await with_codes(visit, [])


async def renew(visit: Visit) -> Codes:
    codes = await renew_codes(visit.store, visit.account, visit.now_ms)
    visit.context.send_notice(visit.account.email, CODES_RENEWED)
    return await with_codes(visit, codes)


async def with_codes(visit: Visit, codes: list[str]) -> Codes:
    """Recovery codes, after a change that gives the session a new secret."""
    return Codes(codes, (await renew_session(visit)).csrf)


async def begin_by_form(visit: Visit) -> Response:
    await begin_totp(visit.store, visit.context.sign_ins.sealer, visit.account)
    return redirect(APP_PAGE)


async def confirm_by_form(visit: Visit, typed: GivenCode) -> Response:
    return _show_codes(visit, await confirm(visit, typed))


async def renew_by_form(visit: Visit) -> Response:
    return _show_codes(visit, await renew(visit))


def _show_codes(visit: Visit, made: Codes) -> Response:
    if made.recovery_codes:
        return visit.page("recovery_codes.html", codes=made.recovery_codes)
    return redirect(SECURITY_PAGE, "app-added")


ROUTES: Routes = (
    get(APP_PAGE, app_page, needs_proof=True),
    form(APP_PAGE, begin_by_form, SECURITY_PAGE, needs_proof=True),
    form(f"{APP_PAGE}/confirm", confirm_by_form, SECURITY_PAGE, on_error=app_page, needs_proof=True),
    form(f"{APP_PAGE}/remove", remove, SECURITY_PAGE, "app-removed", needs_proof=True),
    form("/settings/security/recovery-codes", renew_by_form, SECURITY_PAGE, needs_proof=True),
)
