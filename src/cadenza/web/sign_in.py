"""Signing in and out."""

import msgspec
from starlette.responses import Response

from cadenza.control.accounts import verify_password
from cadenza.control.sessions import begin_session, end_session
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Routes, get, post
from cadenza.web.visit import Visit


class SignInForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account and its password, and the page to go to."""

    email: str
    password: str
    next: str = "/"


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


async def sign_in_page(visit: Visit) -> Response:
    return visit.page("sign_in.html", next=_own_page(visit.request.query_params.get("next", "/")), email="", error="")


async def sign_in(visit: Visit) -> Response:
    form = await visit.form(SignInForm)
    account = await verify_password(visit.context.store, form.email, form.password)
    if account is None or account.suspended_at is not None:
        error = "No account has this e-mail address and password."
        return visit.page("sign_in.html", 400, next=_own_page(form.next), email=form.email, error=error)
    secret = await visit.context.store.transact(
        lambda tx: begin_session(tx, account.id, "complete", visit.agent, visit.now_ms)
    )
    response = redirect(_own_page(form.next))
    visit.set_cookie(response, secret)
    return response


async def settings_page(visit: Visit) -> Response:
    return visit.page("settings.html")


async def sign_out(visit: Visit) -> Response:
    await visit.form(Empty)
    if visit.signed_in:
        await end_session(visit.context.store, visit.signed_in.session.digest)
    response = redirect("/sign-in", "signed-out")
    visit.clear_cookie(response)
    return response


def _own_page(path: str) -> str:
    """A path of this site; the first page for anything else, so that no link leads elsewhere."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable()
    return path if is_own else "/"


ROUTES: Routes = (
    get("/sign-in", sign_in_page, Access.ANYONE),
    get("/settings", settings_page),
    post("/sign-in", sign_in, Access.ANYONE),
    post("/sign-out", sign_out),
)
