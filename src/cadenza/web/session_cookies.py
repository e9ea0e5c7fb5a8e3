"""What the site keeps in a browser that signs in: the cookie of the session, and the long-lived one of the browser.

Every step of signing in gives the browser a new session secret, and what it had before is worth nothing.
"""

from collections.abc import Callable
from urllib.parse import quote

import msgspec
from starlette.responses import RedirectResponse, Response

from cadenza.control.sign_in.devices import remember_device
from cadenza.control.sign_in.passkeys import RelyingParty
from cadenza.control.sign_in.sessions import SignedIn, begin_session, end_for_next, rotate_session
from cadenza.control.sign_in.sign_in import Checked
from cadenza.control.sign_in.throttle import Throttled
from cadenza.core.errors import ControlError
from cadenza.store.store import Transaction
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.sessions import Stage
from cadenza.web.cookies import csrf_token
from cadenza.web.errors import NotSignedIn
from cadenza.web.visit import Visit

DEVICE_COOKIE = "cadenza_device"
DEVICE_S = 400 * 24 * 60 * 60  # the longest that browsers keep a cookie
FIRST_PAGE = "/"


class Step(msgspec.Struct, frozen=True):
    """After a step of signing in: how far it is, and the token for the requests that follow."""

    stage: Stage
    csrf: str


def own_page(path: str) -> str:
    """A path of this site; the first page for anything else, so that no link leads elsewhere."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable()
    return path if is_own else FIRST_PAGE


def second_factor_page(next_page: str) -> RedirectResponse:
    return RedirectResponse(f"/sign-in/second-factor?next={quote(next_page)}", 303)


def device_cookie(visit: Visit) -> str:
    return visit.request.cookies.get(_device_cookie_name(visit), "")


def current(visit: Visit) -> SignedIn:
    """The session of this visit, whatever its stage."""
    if visit.signed_in is None:
        raise NotSignedIn
    return visit.signed_in


async def enter_checked(visit: Visit, checked: Checked, response: Response) -> Step:
    """`enter` after a password was given."""
    return await enter(visit, checked.account, checked.stage, response, checked.require_unchanged)


async def enter(
    visit: Visit,
    account: Account,
    stage: Stage,
    response: Response,
    check: Callable[[Transaction], None] | None = None,
) -> Step:
    """Begin a session in this browser, if the check allows it. The one that it had before ends.

    Without a check, a session that goes on from an earlier one of the account needs that one to be alive still.
    """
    before = visit.signed_in

    def begin(tx: Transaction) -> str:
        if check:
            check(tx)
        elif before and before.account.id == account.id and not end_for_next(tx, before.session):
            raise NotSignedIn
        replaced = before.session.digest if before else None
        return begin_session(tx, account.id, stage, visit.agent, visit.now_ms, replaced)

    secret = await visit.context.store.transact(begin)
    visit.set_cookie(response, secret)
    if stage == "complete":
        await _remember(visit, account, response)
    return Step(stage, csrf_token(secret))


async def rotate(visit: Visit, response: Response, *, is_proof: bool = False) -> Step:
    """Give the session of this browser a new secret."""
    session = current(visit).session
    secret = await visit.context.store.transact(lambda tx: rotate_session(tx, session, visit.now_ms, is_proof=is_proof))
    if secret is None:
        raise NotSignedIn
    visit.set_cookie(response, secret)
    return Step(session.stage, csrf_token(secret))


def fill(response: Response, record: object) -> Response:
    """Make a record the body of a JSON reply that carries cookies."""
    response.body = msgspec.json.encode(record)
    response.media_type = "application/json"
    response.headers["content-type"] = "application/json"
    response.headers["content-length"] = str(len(response.body))
    return response


def status_of(error: ControlError) -> int:
    return 429 if isinstance(error, Throttled) else 400


def passkey_site(visit: Visit) -> RelyingParty:
    """Passkeys belong to the host of the site's address."""
    origin = visit.base_url
    host = origin.partition("://")[2]
    return RelyingParty(host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0], origin)


async def _remember(visit: Visit, account: Account, response: Response) -> None:
    """Mark this browser as one that has signed in to the account."""
    value = await remember_device(visit.context.sign_ins.signer, device_cookie(visit), account.id)
    is_secure = visit.base_url.startswith("https://")
    response.set_cookie(_device_cookie_name(visit), value, DEVICE_S, secure=is_secure, httponly=True, samesite="lax")


def _device_cookie_name(visit: Visit) -> str:
    return f"__Host-{DEVICE_COOKIE}" if visit.base_url.startswith("https://") else DEVICE_COOKIE
