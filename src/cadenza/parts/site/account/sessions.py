"""The session of a browser: its cookie, and the long-lived cookie of a browser that has signed in before.

Every step of signing in gives the browser a new session secret, and the one that it had before becomes invalid.
"""

from collections.abc import Callable

import msgspec

from cadenza.parts.site.cookies import DEVICE_COOKIE
from cadenza.parts.site.errors import NotSignedIn
from cadenza.parts.site.sign_in.devices import remember_device
from cadenza.parts.site.sign_in.passkeys import RelyingParty
from cadenza.parts.site.sign_in.sessions import begin_session, rotate_session
from cadenza.parts.site.tables import sessions
from cadenza.parts.site.tables.sessions import Stage
from cadenza.parts.site.visit import Visit
from cadenza.store.store import Transaction
from cadenza.store.tables.accounts import Account

DEVICE_S = 400 * 24 * 60 * 60  # the longest that browsers keep a cookie
FIRST_PAGE = "/"
SECURITY_PAGE = "/settings/security"


class SignInStatus(msgspec.Struct, frozen=True):
    """The stage of signing in, and the CSRF token for the requests that follow."""

    stage: Stage
    csrf: str


def safe_next_path(path: str) -> str:
    """A path of this site; the first page for anything else, so that no link leads elsewhere."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable()
    return path if is_own else FIRST_PAGE


async def start_session(
    visit: Visit, account: Account, stage: Stage = "complete", check: Callable[[Transaction], None] | None = None
) -> SignInStatus:
    """Start a session in this browser, if the check allows it. The one that it had before ends.

    Without a check, a session that goes on from an earlier one of the account needs that one to be still valid.
    """
    before = visit.signed_in

    def begin(tx: Transaction) -> str:
        if check:
            check(tx)
        has_ended = before is not None and not sessions.remove(tx, before.session.digest)
        if has_ended and not check and before and before.account.id == account.id:
            raise NotSignedIn
        agent = visit.request.headers.get("user-agent", "")
        return begin_session(tx, account.id, stage, agent, visit.now_ms, visit.service.settings.retention)

    visit.set_session_cookie(await visit.store.transact(begin))
    if stage == "complete":
        device = await remember_device(visit.context.sign_ins.signer, visit.get_cookie(DEVICE_COOKIE), account.id)
        visit.set_cookie(DEVICE_COOKIE, device, DEVICE_S)
    return SignInStatus(stage, visit.csrf)


async def renew_session(visit: Visit, *, is_proof: bool = False) -> SignInStatus:
    """Give the session of this browser a new secret."""
    session = visit.require_session().session
    secret = await visit.store.transact(lambda tx: rotate_session(tx, session, visit.now_ms, is_proof=is_proof))
    return use_secret(visit, secret)


def use_secret(visit: Visit, secret: str | None) -> SignInStatus:
    """Take the new secret of the session. None: the session has ended meanwhile."""
    if secret is None:
        raise NotSignedIn
    visit.set_session_cookie(secret)
    return SignInStatus(visit.require_session().session.stage, visit.csrf)


def relying_party(visit: Visit) -> RelyingParty:
    """The site as WebAuthn knows it: passkeys belong to the host of its address."""
    origin = visit.base_url
    host = origin.partition("://")[2]
    return RelyingParty(host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0], origin)
