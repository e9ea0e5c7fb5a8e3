"""The page of sign-in and security: password, e-mail address, sessions. Second factors are shown here too."""

import msgspec
from starlette.responses import Response

from cadenza.control.email.messages import PASSWORD_CHANGED
from cadenza.control.sign_in.credentials import begin_email_change, change_email_at_once, change_password
from cadenza.control.sign_in.passwords import HashLane
from cadenza.control.sign_in.second_factor import get_factors
from cadenza.control.sign_in.sessions import end_other_sessions, end_session_by_id, list_sessions
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.web.account.links import NO_MAIL, Address, limit_mail
from cadenza.web.account.proof import SECURITY_PAGE, require_proof, with_proof
from cadenza.web.account.sign_in import Empty
from cadenza.web.cookies import csrf_token
from cadenza.web.errors import Missing, NotSignedIn
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.session_cookies import Step, current, fill, rotate, status_of
from cadenza.web.visit import Visit


class PasswordChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The password that the account has, and the one that it shall have."""

    old_password: str
    new_password: str


class SessionRecord(msgspec.Struct, frozen=True):
    """A browser that is signed in."""

    id: str
    browser: str
    created_at: str
    last_used_at: str
    is_current: bool


class SessionList(msgspec.Struct, frozen=True):
    """The browsers that are signed in, the last used first."""

    data: list[SessionRecord]
    object: str = "list"


class AddressStep(msgspec.Struct, frozen=True):
    """Whether the address has changed, or a link was sent to it first."""

    is_changed: bool


async def security_page(visit: Visit) -> Response:
    return await _show(visit)


async def send_password(visit: Visit) -> Response:
    form = await visit.form(PasswordChange)
    response = redirect(SECURITY_PAGE, "password-changed")
    try:
        await _change_password(visit, form, response)
    except ControlError as error:
        return await _show(visit, status_of(error), password_error=error.message)
    return response


async def send_email(visit: Visit) -> Response:
    form = await visit.form(Address)
    response = redirect(SECURITY_PAGE, "address-changed" if visit.context.mailer is None else "link-sent")
    try:
        await _change_email(visit, form.email)
    except ControlError as error:
        return await _show(visit, status_of(error), email_error=error.message, email=form.email)
    await rotate(visit, response)
    return response


async def send_verification(visit: Visit) -> Response:
    await visit.form(Empty)
    await _send_verification(visit)
    return redirect(SECURITY_PAGE, "link-sent")


async def end_one(visit: Visit) -> Response:
    await visit.form(Empty)
    await api_end_session(visit)
    return redirect(SECURITY_PAGE, "session-ended")


async def end_others(visit: Visit) -> Response:
    await visit.form(Empty)
    response = redirect(SECURITY_PAGE, "sessions-ended")
    await _end_others(visit, response)
    return response


async def api_change_password(visit: Visit, given: PasswordChange) -> Response:
    response = Response()
    return fill(response, await _change_password(visit, given, response))


async def api_change_email(visit: Visit, given: Address) -> AddressStep:
    require_proof(visit)
    await _change_email(visit, given.email)
    return AddressStep(is_changed=visit.context.mailer is None)


async def api_send_verification(visit: Visit) -> None:
    await _send_verification(visit)


async def api_list_sessions(visit: Visit) -> SessionList:
    found = await list_sessions(visit.context.store, current(visit).session, visit.now_ms)
    return SessionList(
        [
            SessionRecord(one.id, one.browser, rfc3339(one.created_at), rfc3339(one.used_at), one.is_current)
            for one in found
        ]
    )


async def api_end_session(visit: Visit) -> None:
    session_id = str(visit.request.path_params["session_id"])
    if not await end_session_by_id(visit.context.store, visit.account, session_id, visit.now_ms):
        raise Missing("This browser is signed out already.")


async def api_end_others(visit: Visit) -> Response:
    require_proof(visit)
    response = Response()
    return fill(response, await _end_others(visit, response))


async def _change_password(visit: Visit, given: PasswordChange, response: Response) -> Step:
    """The old password is its own proof. Everybody else is signed out."""
    context, session = visit.context, current(visit).session
    await context.sign_ins.check_again(visit.account, session, given.old_password)
    password_hash = await context.sign_ins.passwords.hash(given.new_password, visit.account.email, HashLane.KNOWN)
    secret = await change_password(context.store, session, password_hash, visit.account.email, visit.now_ms)
    if secret is None:
        raise NotSignedIn
    visit.set_cookie(response, secret)
    context.send_notice(visit.account.email, PASSWORD_CHANGED)
    return Step(session.stage, csrf_token(secret))


async def _change_email(visit: Visit, email: str) -> None:
    context, account = visit.context, visit.account
    await limit_mail(visit)
    if context.mailer is None:
        await change_email_at_once(context.store, account, email, visit.now_ms)
        return
    path = await begin_email_change(context.store, account, email, visit.now_ms)
    context.mailer.change_email(account, email.strip().lower(), visit.base_url + path)


async def _send_verification(visit: Visit) -> None:
    if visit.context.mailer is None:
        raise ControlError(NO_MAIL)
    await limit_mail(visit)
    visit.context.mailer.verify(visit.account, visit.base_url, visit.now_ms)


async def _end_others(visit: Visit, response: Response) -> Step:
    await end_other_sessions(visit.context.store, visit.account, current(visit).session.digest, visit.now_ms)
    return await rotate(visit, response)


async def _show(
    visit: Visit, status: int = 200, password_error: str = "", email_error: str = "", email: str = ""
) -> Response:
    context, account = visit.context, visit.account
    return visit.page(
        "security.html",
        status,
        factors=await get_factors(context.store, account.id),
        passkeys=await context.passkeys.list(account.id),
        sessions=await list_sessions(context.store, current(visit).session, visit.now_ms),
        sends_mail=context.mailer is not None,
        password_error=password_error,
        email_error=email_error,
        email=email,
    )


ROUTES: Routes = (
    get("/settings/security", security_page),
    post("/settings/security/password", send_password),
    post("/settings/security/email", with_proof(send_email)),
    post("/settings/security/verification", send_verification),
    post("/settings/security/sessions/{session_id}/end", end_one),
    post("/settings/security/sessions/end-others", with_proof(end_others)),
    Endpoint(
        "PUT", "/password", "Change the password. All other sessions end.", api_change_password, PasswordChange, Step
    ),
    Endpoint(
        "PUT",
        "/email",
        "Change the e-mail address: at once, or by a link that is sent to the new one.",
        api_change_email,
        Address,
        AddressStep,
    ),
    Endpoint("POST", "/email/verification", "Have a link sent that verifies the address.", api_send_verification),
    Endpoint("GET", "/sessions", "List the browsers that are signed in.", api_list_sessions, returns=SessionList),
    Endpoint("DELETE", "/sessions/{session_id}", "Sign out one browser.", api_end_session),
    Endpoint("DELETE", "/sessions", "Sign out everywhere but here.", api_end_others, returns=Step),
)
