"""The pages behind links: reset a password, verify an address, take a new address. And asking for a reset.

Opening a link changes nothing; the button on its page does. With e-mail, asking for a reset gets the same reply for
every address, at once.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.email.messages import EMAIL_CHANGED, PASSWORD_CHANGED
from cadenza.control.sign_in import throttle
from cadenza.control.sign_in.credentials import (
    DEAD_LINK,
    finish_email_change,
    require_link,
    reset_password,
    verify_email,
)
from cadenza.control.sign_in.throttle import network_limits
from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate
from cadenza.store.tables.links import Link, LinkKind
from cadenza.web.account.sign_in import Empty
from cadenza.web.errors import Missing
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, get, post
from cadenza.web.session_cookies import status_of
from cadenza.web.visit import Visit

MAIL_RATE = Rate(1 / 60, 10)  # letters that one network asks for
NO_MAIL = "This service sends no e-mail. Ask its operator for a link."


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An e-mail address."""

    email: str


class NewPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new password."""

    password: str


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of a link, and a new password."""

    secret: str
    password: str


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of a link: the last part of its address."""

    secret: str


async def reset_page(visit: Visit) -> Response:
    return visit.page("reset.html", sends_mail=visit.context.mailer is not None, error="")


async def ask_reset(visit: Visit) -> Response:
    form = await visit.form(Address)
    try:
        await _ask_reset(visit, form.email)
    except ControlError as error:
        return visit.page(
            "reset.html", status_of(error), sends_mail=visit.context.mailer is not None, error=error.message
        )
    return redirect("/reset", "reset-sent")


async def new_password_page(visit: Visit) -> Response:
    await _require(visit, "reset")
    return visit.page("new_password.html", path=visit.request.url.path, error="")


async def set_new_password(visit: Visit) -> Response:
    form = await visit.form(NewPassword)
    try:
        await _reset(visit, _secret(visit), form.password)
    except ControlError as error:
        await _require(visit, "reset")
        return visit.page("new_password.html", status_of(error), path=visit.request.url.path, error=error.message)
    return redirect("/sign-in", "password-set")


async def verify_page(visit: Visit) -> Response:
    link = await _require(visit, "verify")
    return visit.page("verify.html", email=link.email, path=visit.request.url.path, question="Is this your address?")


async def verify(visit: Visit) -> Response:
    await visit.form(Empty)
    try:
        await verify_email(visit.context.store, _secret(visit), visit.now_ms)
    except ControlError as error:
        raise Missing(error.message) from None
    return redirect("/settings/security" if visit.is_signed_in else "/sign-in", "verified")


async def new_address_page(visit: Visit) -> Response:
    link = await _require(visit, "change_email")
    if link.account_id != visit.account.id:
        raise Missing(DEAD_LINK)
    return visit.page("verify.html", email=link.email, path=visit.request.url.path, question="Use this address?")


async def use_new_address(visit: Visit) -> Response:
    await visit.form(Empty)
    await _use_new_address(visit, _secret(visit))
    return redirect("/settings/security", "address-changed")


async def api_ask_reset(visit: Visit, given: Address) -> None:
    await _ask_reset(visit, given.email)


async def api_reset(visit: Visit, given: ResetRequest) -> None:
    await _reset(visit, given.secret, given.password)


async def api_verify(visit: Visit, given: Secret) -> None:
    await verify_email(visit.context.store, given.secret, visit.now_ms)


async def api_new_address(visit: Visit, given: Secret) -> None:
    await _use_new_address(visit, given.secret)


async def limit_mail(visit: Visit) -> None:
    """Limits how many letters one network asks for."""
    limits = network_limits("mail:network", visit.address, MAIL_RATE)
    await throttle.take(visit.context.rates, limits, "Too many e-mails were asked for. Try again in a few minutes.")


async def _ask_reset(visit: Visit, email: str) -> None:
    mailer = visit.context.mailer
    if mailer is None:
        raise ControlError(NO_MAIL)
    await limit_mail(visit)
    mailer.reset(email, visit.base_url, visit.now_ms)


async def _reset(visit: Visit, secret: str, password: str) -> None:
    context = visit.context
    account = await reset_password(context.store, context.sign_ins.passwords, secret, password, visit.now_ms)
    context.send_notice(account.email, PASSWORD_CHANGED)


async def _use_new_address(visit: Visit, secret: str) -> None:
    old = visit.account
    try:
        await finish_email_change(visit.context.store, old, secret, visit.now_ms)
    except ControlError as error:
        raise Missing(error.message) from None
    visit.context.send_notice(old.email, EMAIL_CHANGED)


async def _require(visit: Visit, kind: LinkKind) -> Link:
    try:
        return await require_link(visit.context.store, _secret(visit), kind, visit.now_ms)
    except ControlError as error:
        raise Missing(error.message) from None


def _secret(visit: Visit) -> str:
    return str(visit.request.path_params["secret"])


ROUTES: Routes = (
    get("/reset", reset_page, Access.ANYONE),
    post("/reset", ask_reset, Access.ANYONE),
    get("/reset/{secret}", new_password_page, Access.ANYONE),
    post("/reset/{secret}", set_new_password, Access.ANYONE),
    get("/verify/{secret}", verify_page, Access.ANYONE),
    post("/verify/{secret}", verify, Access.ANYONE),
    get("/new-address/{secret}", new_address_page),
    post("/new-address/{secret}", use_new_address),
    Endpoint(
        "POST",
        "/reset/ask",
        "Have a link sent that resets the password. The reply is the same for every address.",
        api_ask_reset,
        takes=Address,
        access=Access.ANYONE,
    ),
    Endpoint(
        "POST",
        "/reset",
        "Set a password by a link. All sessions end.",
        api_reset,
        takes=ResetRequest,
        access=Access.ANYONE,
    ),
    Endpoint("POST", "/verify", "Verify the address of a link.", api_verify, takes=Secret, access=Access.ANYONE),
    Endpoint("POST", "/new-address", "Take the new e-mail address of a link.", api_new_address, takes=Secret),
)
