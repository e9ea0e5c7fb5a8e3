"""The page of sign-in and security: password, e-mail address, sessions, and the end of the account.

Second factors are shown here too.
"""

from starlette.responses import Response

from cadenza.control.account.erasure import begin_erasure
from cadenza.core.errors import ControlError
from cadenza.core.records import Owner
from cadenza.parts.site.account.links import NO_MAIL, limit_mail, tell_password_set
from cadenza.parts.site.account.sessions import SECURITY_PAGE, renew_session, use_secret
from cadenza.parts.site.cookies import SESSION_COOKIE
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.sign_in.credentials import begin_email_change, change_email_at_once, change_password
from cadenza.parts.site.sign_in.passwords import HashLane
from cadenza.parts.site.sign_in.sessions import end_other_sessions, end_session_by_id, list_sessions
from cadenza.parts.site.tables.second_factors import get_factors, list_passkeys
from cadenza.parts.site.visit import Visit


async def security_page(visit: Visit) -> Response:
    """With an error, the form at fault is open."""
    context, account = visit.context, visit.account
    retention = visit.service.settings.retention
    return visit.page(
        "security.html",
        factors=await get_factors(visit.store, account.id),
        passkeys=await list_passkeys(visit.store, account.id),
        sessions=await list_sessions(visit.store, visit.require_session().session, visit.now_ms, retention),
        sends_mail=context.mailer is not None,
        form=visit.path.rpartition("/")[2],  # password, email or delete
        email=visit.typed.get("email", ""),
    )


async def set_password(
    visit: Visit, old_password: str, new_password: str, *, revoke_tokens: bool = False
) -> Response | None:
    """The old password is its own proof. All other browsers are signed out."""
    context, signed_in = visit.context, visit.require_session()
    await context.sign_ins.check_again(visit.account, signed_in.session, old_password)
    password_hash = await context.sign_ins.passwords.hash(new_password, visit.account.email, HashLane.KNOWN)
    secret, done = await change_password(
        visit.store, signed_in, password_hash, visit.owner, visit.now_ms, revokes_tokens=revoke_tokens
    )
    use_secret(visit, secret)
    return tell_password_set(visit, done)


async def change_email(visit: Visit, email: str) -> Response:
    mailer, account = visit.context.mailer, visit.account
    await limit_mail(visit)
    if mailer is None:
        await change_email_at_once(visit.store, account, email, visit.now_ms)
    else:
        path = await begin_email_change(visit.store, account, email, visit.now_ms)
        mailer.change_email(account, email.strip().lower(), visit.base_url + path)
    await renew_session(visit)
    return redirect(SECURITY_PAGE, "link-sent" if mailer else "address-changed")


async def send_verification(visit: Visit) -> None:
    if visit.context.mailer is None:
        raise ControlError(NO_MAIL)
    await limit_mail(visit)
    visit.context.mailer.verify(visit.account, visit.base_url, visit.now_ms)


async def end_session(visit: Visit) -> None:
    await end_session_by_id(visit.store, visit.account, visit.path_param("session_id"), visit.now_ms)


async def end_others(visit: Visit) -> None:
    await end_other_sessions(visit.store, visit.account, visit.require_session().session.digest, visit.now_ms)
    await renew_session(visit)


async def delete_account(visit: Visit, confirmed_email: str) -> Response:
    """The keys stop at once, every browser is signed out, and credit that is left is forfeited."""
    account = visit.account
    if confirmed_email.strip().lower() != account.email:
        raise ControlError("That is not the address of this account. Nothing was deleted.")
    await begin_erasure(visit.store, account.email, Owner(account.id, account.id), visit.now_ms)
    visit.context.account_eraser.erase_soon()
    visit.set_cookie(SESSION_COOKIE, "", 0)
    return redirect("/sign-in", "account-deleted")


ROUTES: Routes = (
    get(SECURITY_PAGE, security_page),
    form(f"{SECURITY_PAGE}/password", set_password, SECURITY_PAGE, "password-changed", on_error=security_page),
    form(f"{SECURITY_PAGE}/email", change_email, SECURITY_PAGE, on_error=security_page, needs_proof=True),
    form(f"{SECURITY_PAGE}/verification", send_verification, SECURITY_PAGE, "link-sent"),
    form(SECURITY_PAGE + "/sessions/{session_id}/end", end_session, SECURITY_PAGE, "session-ended"),
    form(f"{SECURITY_PAGE}/sessions/end-others", end_others, SECURITY_PAGE, "sessions-ended", needs_proof=True),
    form(f"{SECURITY_PAGE}/delete", delete_account, SECURITY_PAGE, on_error=security_page, needs_proof=True),
)
