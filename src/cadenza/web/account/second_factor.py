"""Setting up the second factor: the authenticator app and the recovery codes. Everything here needs a recent proof."""

import msgspec
import segno
from markupsafe import Markup
from starlette.responses import Response

from cadenza.control.email.messages import APP_ADDED, APP_REMOVED, CODES_RENEWED
from cadenza.control.sign_in.second_factor import (
    Enrolment,
    begin_totp,
    confirm_totp,
    enrolment_of,
    get_factors,
    remove_totp,
    renew_codes,
)
from cadenza.core.errors import ControlError
from cadenza.web.account.proof import SECURITY_PAGE, require_proof, with_proof
from cadenza.web.account.sign_in import Empty, GivenCode
from cadenza.web.errors import Missing
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.session_cookies import fill, rotate, status_of
from cadenza.web.visit import Visit

APP_PAGE = "/settings/security/app"


class EnrolmentRecord(msgspec.Struct, frozen=True):
    """The secret for an authenticator app, as the address of a QR code and as text."""

    uri: str
    secret: str


class Codes(msgspec.Struct, frozen=True):
    """Recovery codes, shown this once. None if the account has some already."""

    recovery_codes: list[str]
    csrf: str


class FactorsRecord(msgspec.Struct, frozen=True):
    """The second factors of an account, and how many recovery codes are left."""

    has_app: bool
    passkeys: int
    recovery_codes: int


async def begin(visit: Visit) -> Response:
    await visit.form(Empty)
    await begin_totp(visit.context.store, visit.context.sign_ins.sealer, visit.account)
    return redirect(APP_PAGE)


async def app_page(visit: Visit) -> Response:
    try:
        enrolment = await enrolment_of(visit.context.store, visit.context.sign_ins.sealer, visit.account)
    except ControlError:
        return redirect(SECURITY_PAGE)
    return _show(visit, enrolment)


async def confirm(visit: Visit) -> Response:
    form = await visit.form(GivenCode)
    try:
        codes = await _confirm(visit, form.code)
    except ControlError as error:
        enrolment = await enrolment_of(visit.context.store, visit.context.sign_ins.sealer, visit.account)
        return _show(visit, enrolment, status_of(error), error.message)
    return await show_codes(visit, codes, "app-added")


async def remove(visit: Visit) -> Response:
    await visit.form(Empty)
    await _remove(visit)
    response = redirect(SECURITY_PAGE, "app-removed")
    await rotate(visit, response)
    return response


async def renew(visit: Visit) -> Response:
    await visit.form(Empty)
    codes = await _renew(visit)
    return await show_codes(visit, codes, "saved")


async def show_codes(visit: Visit, codes: list[str], note: str) -> Response:
    """Show recovery codes, this once; without any, go back to the page of security."""
    response = visit.page("recovery_codes.html", codes=codes) if codes else redirect(SECURITY_PAGE, note)
    await rotate(visit, response)
    return response


async def api_factors(visit: Visit) -> FactorsRecord:
    found = await get_factors(visit.context.store, visit.account.id)
    return FactorsRecord(found.has_totp, found.passkeys, found.recovery_codes)


async def api_begin(visit: Visit) -> EnrolmentRecord:
    require_proof(visit)
    made = await begin_totp(visit.context.store, visit.context.sign_ins.sealer, visit.account)
    return EnrolmentRecord(made.uri, made.text)


async def api_confirm(visit: Visit, given: GivenCode) -> Response:
    require_proof(visit)
    return await reply_codes(visit, await _confirm(visit, given.code))


async def api_remove(visit: Visit) -> Response:
    require_proof(visit)
    if not await _remove(visit):
        raise Missing("There is no authenticator app.")
    return await reply_codes(visit, [])


async def api_renew(visit: Visit) -> Response:
    require_proof(visit)
    return await reply_codes(visit, await _renew(visit))


async def reply_codes(visit: Visit, codes: list[str]) -> Response:
    """Recovery codes as JSON, with the session's new cookie."""
    response = Response()
    step = await rotate(visit, response)
    return fill(response, Codes(codes, step.csrf))


async def _confirm(visit: Visit, code: str) -> list[str]:
    codes = await confirm_totp(visit.context.store, visit.context.sign_ins.sealer, visit.account, code, visit.now_ms)
    visit.context.send_notice(visit.account.email, APP_ADDED)
    return codes


async def _remove(visit: Visit) -> bool:
    is_removed = await remove_totp(visit.context.store, visit.account, visit.now_ms)
    if is_removed:
        visit.context.send_notice(visit.account.email, APP_REMOVED)
    return is_removed


async def _renew(visit: Visit) -> list[str]:
    codes = await renew_codes(visit.context.store, visit.account, visit.now_ms)
    visit.context.send_notice(visit.account.email, CODES_RENEWED)
    return codes


def _show(visit: Visit, enrolment: Enrolment, status: int = 200, error: str = "") -> Response:
    picture = Markup(segno.make(enrolment.uri, error="m").svg_inline(scale=5, border=3, light="#fff"))  # noqa: S704 made here
    return visit.page("authenticator.html", status, picture=picture, text=enrolment.text, error=error)


ROUTES: Routes = (
    get(APP_PAGE, with_proof(app_page)),
    post(APP_PAGE, with_proof(begin)),
    post(f"{APP_PAGE}/confirm", with_proof(confirm)),
    post(f"{APP_PAGE}/remove", with_proof(remove)),
    post("/settings/security/recovery-codes", with_proof(renew)),
    Endpoint("GET", "/second-factor", "Which second factors the account has.", api_factors, returns=FactorsRecord),
    Endpoint("POST", "/totp", "Begin with an authenticator app.", api_begin, returns=EnrolmentRecord),
    Endpoint(
        "POST", "/totp/confirm", "Confirm the authenticator app by its first code.", api_confirm, GivenCode, Codes
    ),
    Endpoint("DELETE", "/totp", "Remove the authenticator app.", api_remove, returns=Codes),
    Endpoint("POST", "/recovery-codes", "Replace the recovery codes.", api_renew, returns=Codes),
)
