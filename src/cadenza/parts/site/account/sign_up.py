"""Signing up: open, by invitation, or closed. With e-mail, the account is made by the link that the page sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response

from cadenza.control.account.accounts import require_email
from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate
from cadenza.fleet.limits import Limit, network_limits, release
from cadenza.parts.site.account.sessions import FIRST_PAGE, start_session
from cadenza.parts.site.errors import Missing
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Access, Routes, form, get
from cadenza.parts.site.sign_in import throttle
from cadenza.parts.site.sign_in.passwords import clean_password
from cadenza.parts.site.sign_in.sign_up import Invitation, SignUpChoice, find_invitation, join, sign_up
from cadenza.parts.site.visit import Visit

SIGN_UP_RATE = Rate(1 / 300, 10)  # for each client network
ALL_SIGN_UPS = Rate(0.5, 300)
HOUR_S = 3600
CREDIT_RATE = Rate(10 / HOUR_S, 10)  # accounts that get the opening credit, for each client network
CLOSED = "Sign-up is closed here. Ask the operator of this service for an account."
DEAD_OPERATOR_LINK = (
    "This link was used before, has expired, or was replaced by a later start of the service. If you have an account, "
    "sign in. Sign-up is closed here: otherwise ask the operator of this service for an account."
)
INVITED_ONLY = "Sign-up is by invitation here. Open the link that you were sent."


async def sign_up_page(visit: Visit) -> Response:
    if visit.is_signed_in and not visit.error:
        return redirect(FIRST_PAGE)
    sign_up, sends_mail = visit.context.settings.sign_up, visit.context.mailer is not None
    email = visit.typed.get("email", "")
    return visit.page("sign_up.html", sign_up=sign_up, sends_mail=sends_mail, email=email)


async def join_page(visit: Visit) -> Response:
    invitation = await _invitation(visit, visit.path_param("secret"))
    email, path = visit.typed.get("email", ""), visit.path
    return visit.page("join.html", invitation=invitation, email=email, path=path)


async def make_account(visit: Visit, email: str, password: str = "") -> Response:
    """With e-mail, a link is sent, unless the address has an account already, and the password is chosen later."""
    settings, context = visit.context.settings, visit.context
    if settings.sign_up != "open":
        raise ControlError(INVITED_ONLY if settings.sign_up == "invite" else CLOSED)
    if context.mailer:
        await _limit(visit)
        context.mailer.invite(email, visit.base_url, visit.now_ms)
        return redirect("/sign-up", "mail-sent")
    require_email(email)
    clean_password(password, email)
    await _limit(visit)
    work = context.sign_ins.passwords
    async with _opening_credit(visit) as credit_nano:
        account = await sign_up(visit.store, work, email, password, credit_nano, visit.now_ms)
    await start_session(visit, account)
    return redirect(FIRST_PAGE)


async def use_invitation(visit: Visit, secret: str, password: str, email: str = "") -> Response:
    """The address counts only if the invitation has none."""
    chosen, passwords = SignUpChoice(email, password), visit.context.sign_ins.passwords
    invitation = await _invitation(visit, secret)
    clean_password(password, invitation.email or email)
    await _limit(visit)
    async with _opening_credit(visit) as credit_nano:
        account = await join(visit.store, passwords, invitation, chosen, credit_nano, visit.now_ms)
    await start_session(visit, account)
    return redirect("/operator" if account.is_operator else "/chat", "welcome")


async def _invitation(visit: Visit, secret: str) -> Invitation:
    """Where sign-up is closed, only the link of the first operator works."""
    is_closed = visit.context.settings.sign_up == "closed"
    try:
        found = await find_invitation(visit.store, secret, visit.now_ms)
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
    await throttle.take(visit.service.shared.rates, limits, message)


@asynccontextmanager
async def _opening_credit(visit: Visit) -> AsyncIterator[int]:
    """The credit of a new account. It is rate-limited by network and in total."""
    settings, rates, limits = visit.context.settings, visit.service.shared.rates, list[Limit]()
    if settings.opening_credit_nano:
        per_hour = settings.opening_credits_per_hour
        limits = network_limits("opening-credit:network", visit.address, CREDIT_RATE)
        limits.append(Limit("opening-credit", Rate(per_hour / HOUR_S, per_hour)))
    await throttle.take(rates, limits, "Too many new accounts got their opening credit lately. Try again in an hour.")
    try:
        yield settings.opening_credit_nano
    except ControlError:
        release(rates, limits)
        raise


JOIN = "/join/{secret}"
ROUTES: Routes = (
    get("/sign-up", sign_up_page, Access.ANYONE),
    form("/sign-up", make_account, "/sign-up", on_error=sign_up_page, access=Access.ANYONE),
    get(JOIN, join_page, Access.ANYONE),
    form(JOIN, use_invitation, JOIN, on_error=join_page, access=Access.ANYONE),
)
