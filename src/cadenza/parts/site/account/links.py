"""The pages that links open: reset a password, verify an e-mail address, change it; and the request for a reset link.

Opening a link changes nothing; pressing the button on its page does. A reset request gets the same reply at once for
every address, so that it does not tell which addresses have an account.
"""

from starlette.responses import Response

from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate
from cadenza.fleet.limits import network_limits
from cadenza.parts.site.account.sessions import SECURITY_PAGE
from cadenza.parts.site.accounts import PasswordSet
from cadenza.parts.site.mailer import EMAIL_CHANGED, PASSWORD_CHANGED
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Access, Routes, form, get
from cadenza.parts.site.sign_in import throttle
from cadenza.parts.site.sign_in.credentials import (
    DeadLink,
    finish_email_change,
    require_link,
    reset_password,
    verify_email,
)
from cadenza.parts.site.tables.links import Link, LinkKind
from cadenza.parts.site.visit import Visit

MAIL_RATE = Rate(1 / 60, 10)  # e-mails that one network asks for
NO_MAIL = "This service sends no e-mail. Ask its operator for a link."


async def reset_page(visit: Visit) -> Response:
    return visit.page("reset.html", sends_mail=visit.context.mailer is not None)


async def new_password_page(visit: Visit) -> Response:
    await _require_link(visit, "reset")
    return visit.page("new_password.html", path=visit.path)


async def verify_page(visit: Visit) -> Response:
    link = await _require_link(visit, "verify")
    return visit.page("verify.html", email=link.email, path=visit.path, question="Is this your address?")


async def new_address_page(visit: Visit) -> Response:
    link = await _require_link(visit, "change_email")
    if link.account_id != visit.account.id:
        raise DeadLink
    return visit.page("verify.html", email=link.email, path=visit.path, question="Use this address?")


async def ask_reset(visit: Visit, email: str) -> None:
    mailer = visit.context.mailer
    if mailer is None:
        raise ControlError(NO_MAIL)
    await limit_mail(visit)
    mailer.reset(email, visit.base_url, visit.now_ms)


async def reset(visit: Visit, secret: str, password: str) -> Response | None:
    passwords = visit.context.sign_ins.passwords
    return tell_password_set(visit, await reset_password(visit.store, passwords, secret, password, visit.now_ms))


def tell_password_set(visit: Visit, done: PasswordSet) -> Response | None:
    """Tell the owner by e-mail, and on a page if there were tokens or there are keys."""
    detail = f"\n\n{done.consequences} Revoke what is not yours: {visit.base_url}/keys" if done.consequences else ""
    visit.context.send_notice(done.account.email, PASSWORD_CHANGED, detail)
    return visit.page("password_set.html", done=done) if done.consequences else None


async def use_new_address(visit: Visit, secret: str) -> None:
    old = visit.account
    await finish_email_change(visit.store, old, secret, visit.now_ms)
    visit.context.send_notice(old.email, EMAIL_CHANGED)


async def verify_by_form(visit: Visit, secret: str) -> Response:
    await verify_email(visit.store, secret, visit.now_ms)
    return redirect(SECURITY_PAGE if visit.is_signed_in else "/sign-in", "verified")


async def limit_mail(visit: Visit) -> None:
    """429 for a network that asks for too many e-mails."""
    limits = network_limits("mail:network", visit.address, MAIL_RATE)
    await throttle.take(
        visit.service.shared.rates, limits, "Too many e-mails were asked for. Try again in a few minutes."
    )


async def _require_link(visit: Visit, kind: LinkKind) -> Link:
    return await require_link(visit.store, visit.path_param("secret"), kind, visit.now_ms)


RESET, VERIFY, NEW_ADDRESS = "/reset/{secret}", "/verify/{secret}", "/new-address/{secret}"
ROUTES: Routes = (
    get("/reset", reset_page, Access.ANYONE),
    form("/reset", ask_reset, "/reset", "reset-sent", on_error=reset_page, access=Access.ANYONE),
    get(RESET, new_password_page, Access.ANYONE),
    form(RESET, reset, "/sign-in", "password-set", on_error=new_password_page, access=Access.ANYONE),
    get(VERIFY, verify_page, Access.ANYONE),
    form(VERIFY, verify_by_form, VERIFY, access=Access.ANYONE),
    get(NEW_ADDRESS, new_address_page),
    form(NEW_ADDRESS, use_new_address, SECURITY_PAGE, "address-changed"),
)
