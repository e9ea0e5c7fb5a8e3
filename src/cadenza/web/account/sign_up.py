"""Signing up: open, by invitation, or closed. With e-mail, the account is made by the link that the page sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.responses import Response

from cadenza.control.account.accounts import require_email
from cadenza.control.sign_in import throttle
from cadenza.control.sign_in.passwords import clean_password
from cadenza.control.sign_in.sign_up import Invitation, SignUpChoice, find_invitation, join, sign_up
from cadenza.control.sign_in.throttle import Limit, network_limits
from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate
from cadenza.store.tables.accounts import Account
from cadenza.web.errors import Missing
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, get, post
from cadenza.web.session_cookies import FIRST_PAGE, Step, enter, fill, status_of
from cadenza.web.visit import Visit

SIGN_UP_RATE = Rate(1 / 300, 10)  # of one network
ALL_SIGN_UPS = Rate(0.5, 300)
HOUR_S = 3600
CREDIT_RATE = Rate(10 / HOUR_S, 10)  # accounts of one network that get the opening credit
CLOSED = "Sign-up is closed here. Ask the operator of this service for an account."
DEAD_OPERATOR_LINK = (
    "This link was used before, has expired, or was replaced by a later start of the service. If you have an account, "
    "sign in. Sign-up is closed here: otherwise ask the operator of this service for an account."
)
INVITED_ONLY = "Sign-up is by invitation here. Open the link that you were sent."
BY_MAIL = "This service sends a link to the address; the password is chosen there."


class SignUpForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new account. With e-mail, the password is chosen later."""

    email: str
    password: str = ""


class JoinForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the reader of an invitation chooses."""

    password: str
    email: str = ""


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of an invitation, and what its reader chooses. The address is needed if the invitation names none."""

    secret: str
    password: str
    email: str = ""


class SignUpStep(msgspec.Struct, frozen=True):
    """What happens next: an e-mail with a link was sent if the address can be used, or the account is signed in."""

    next: str
    csrf: str


async def sign_up_page(visit: Visit) -> Response:
    return redirect(FIRST_PAGE) if visit.is_signed_in else _show(visit)


async def send_sign_up(visit: Visit) -> Response:
    form = await visit.form(SignUpForm)
    try:
        account = await _sign_up(visit, form)
    except ControlError as error:
        return _show(visit, status_of(error), form.email, error.message)
    if account is None:
        return redirect("/sign-up", "mail-sent")
    response = redirect(FIRST_PAGE)
    await enter(visit, account, "complete", response)
    return response


async def join_page(visit: Visit) -> Response:
    return await _show_join(visit)


async def send_join(visit: Visit) -> Response:
    form = await visit.form(JoinForm)
    try:
        account = await _join(visit, _secret(visit), SignUpChoice(form.email, form.password))
    except ControlError as error:
        return await _show_join(visit, status_of(error), form.email, error.message)
    response = redirect("/operator" if account.is_operator else "/chat", "welcome")
    await enter(visit, account, "complete", response)
    return response


async def api_sign_up(visit: Visit, given: SignUpForm) -> Response:
    account = await _sign_up(visit, given)
    response = Response(status_code=201 if account else 202)
    if account is None:
        return fill(response, SignUpStep("link", visit.csrf))
    step = await enter(visit, account, "complete", response)
    return fill(response, SignUpStep("signed_in", step.csrf))


async def api_join(visit: Visit, given: JoinRequest) -> Response:
    account = await _join(visit, given.secret, SignUpChoice(given.email, given.password))
    response = Response(status_code=201)
    return fill(response, await enter(visit, account, "complete", response))


async def _sign_up(visit: Visit, form: SignUpForm) -> Account | None:
    """The new account; None if a link was sent, or would have been if the address had no account."""
    settings, context = visit.context.settings, visit.context
    if settings.sign_up != "open":
        raise ControlError(INVITED_ONLY if settings.sign_up == "invite" else CLOSED)
    if context.mailer:
        await _limit(visit)
        context.mailer.invite(form.email, visit.base_url, visit.now_ms)
        return None
    require_email(form.email)
    clean_password(form.password, form.email)
    await _limit(visit)
    work = context.sign_ins.passwords
    async with _opening_credit(visit) as credit_nano:
        return await sign_up(context.store, work, form.email, form.password, credit_nano, visit.now_ms)


async def _join(visit: Visit, secret: str, chosen: SignUpChoice) -> Account:
    context = visit.context
    invitation = await _invitation(visit, secret)
    clean_password(chosen.password, invitation.email or chosen.email)
    await _limit(visit)
    async with _opening_credit(visit) as credit_nano:
        return await join(context.store, context.sign_ins.passwords, invitation, chosen, credit_nano, visit.now_ms)


async def _invitation(visit: Visit, secret: str) -> Invitation:
    """Where sign-up is closed, only the link of the first operator works."""
    is_closed = visit.context.settings.sign_up == "closed"
    try:
        found = await find_invitation(visit.context.store, secret, visit.now_ms)
    except ControlError:
        if is_closed:
            raise Missing(DEAD_OPERATOR_LINK) from None
        raise
    if is_closed and not found.is_operator:
        raise Missing(CLOSED)
    return found


async def _limit(visit: Visit) -> None:
    """Limit the password hashes and e-mails that one network, and all networks together, can cause."""
    limits = [*network_limits("sign-up:network", visit.address, SIGN_UP_RATE), Limit("sign-up", ALL_SIGN_UPS)]
    message = "Too many accounts were asked for from your network. Try again later."
    await throttle.take(visit.context.rates, limits, message)


@asynccontextmanager
async def _opening_credit(visit: Visit) -> AsyncIterator[int]:
    """The credit of a new account. It is rate-limited by network and in total."""
    settings, rates, limits = visit.context.settings, visit.context.rates, list[Limit]()
    if settings.opening_credit_nano:
        per_hour = settings.opening_credits_per_hour
        limits = network_limits("opening-credit:network", visit.address, CREDIT_RATE)
        limits.append(Limit("opening-credit", Rate(per_hour / HOUR_S, per_hour)))
    await throttle.take(rates, limits, "Too many new accounts got their opening credit lately. Try again in an hour.")
    try:
        yield settings.opening_credit_nano
    except ControlError:
        throttle.give_back(rates, limits)
        raise


def _show(visit: Visit, status: int = 200, email: str = "", error: str = "") -> Response:
    sends_mail = visit.context.mailer is not None
    sign_up = visit.context.settings.sign_up
    return visit.page("sign_up.html", status, sign_up=sign_up, sends_mail=sends_mail, email=email, error=error)


async def _show_join(visit: Visit, status: int = 200, email: str = "", error: str = "") -> Response:
    try:
        invitation = await _invitation(visit, _secret(visit))
    except ControlError as dead:
        raise Missing(dead.message) from None
    path = visit.request.url.path
    return visit.page("join.html", status, invitation=invitation, email=email, error=error, path=path)


def _secret(visit: Visit) -> str:
    return str(visit.request.path_params["secret"])


ROUTES: Routes = (
    get("/sign-up", sign_up_page, Access.ANYONE),
    post("/sign-up", send_sign_up, Access.ANYONE),
    get("/join/{secret}", join_page, Access.ANYONE),
    post("/join/{secret}", send_join, Access.ANYONE),
    Endpoint(
        "POST",
        "/sign-up",
        f"Sign up. {BY_MAIL} Without e-mail, the account is made at once.",
        api_sign_up,
        takes=SignUpForm,
        returns=SignUpStep,
        access=Access.ANYONE,
    ),
    Endpoint(
        "POST",
        "/join",
        "Make an account by an invitation, or by the one-time link of the first operator.",
        api_join,
        takes=JoinRequest,
        returns=Step,
        access=Access.ANYONE,
    ),
)
