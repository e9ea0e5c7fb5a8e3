"""Setting up the second factor: the authenticator app and the recovery codes. Everything here needs a recent proof."""

import segno
from markupsafe import Markup
from starlette.responses import Response

from cadenza.core.errors import ControlError
from cadenza.parts.site.account.sessions import SECURITY_PAGE, renew_session
from cadenza.parts.site.mailer import APP_ADDED, APP_REMOVED, CODES_RENEWED, EmailText
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.sign_in.second_factor import (
    begin_totp,
    confirm_totp,
    enrolment_of,
    remove_totp,
    renew_codes,
)
from cadenza.parts.site.visit import Visit

APP_PAGE = "/settings/security/app"


async def app_page(visit: Visit) -> Response:
    try:
        enrolment = await enrolment_of(visit.store, visit.context.sign_ins.sealer, visit.account)
    except ControlError:
        return redirect(SECURITY_PAGE)
    picture = Markup(segno.make(enrolment.uri, error="m").svg_inline(scale=5, border=3, light="#fff"))  # noqa: S704 made here
    return visit.page("authenticator.html", picture=picture, text=enrolment.text)


async def begin(visit: Visit) -> Response:
    await begin_totp(visit.store, visit.context.sign_ins.sealer, visit.account)
    return redirect(APP_PAGE)


async def confirm(visit: Visit, code: str) -> Response:
    codes = await confirm_totp(visit.store, visit.context.sign_ins.sealer, visit.account, code, visit.now_ms)
    return await _show_codes(visit, APP_ADDED, codes)


async def remove(visit: Visit) -> None:
    await remove_totp(visit.store, visit.account, visit.now_ms)
    visit.context.send_notice(visit.account.email, APP_REMOVED)
    await renew_session(visit)


async def renew(visit: Visit) -> Response:
    return await _show_codes(visit, CODES_RENEWED, await renew_codes(visit.store, visit.account, visit.now_ms))


async def _show_codes(visit: Visit, notice: EmailText, codes: list[str]) -> Response:
    """After a change of the second factor: the session gets a new secret, and new codes are shown this once."""
    visit.context.send_notice(visit.account.email, notice)
    await renew_session(visit)
    return visit.page("recovery_codes.html", codes=codes) if codes else redirect(SECURITY_PAGE, "app-added")


ROUTES: Routes = (
    get(APP_PAGE, app_page, needs_proof=True),
    form(APP_PAGE, begin, SECURITY_PAGE, needs_proof=True),
    form(f"{APP_PAGE}/confirm", confirm, SECURITY_PAGE, on_error=app_page, needs_proof=True),
    form(f"{APP_PAGE}/remove", remove, SECURITY_PAGE, "app-removed", needs_proof=True),
    form("/settings/security/recovery-codes", renew, SECURITY_PAGE, needs_proof=True),
)
