"""Passkeys: endpoints for the script of the pages, because a browser makes and uses passkeys only by script."""

from typing import Any

import msgspec
from starlette.responses import Response

from cadenza.core.errors import ControlError
from cadenza.parts.site.account.sessions import SECURITY_PAGE, SignInStatus, relying_party, renew_session, start_session
from cadenza.parts.site.mailer import PASSKEY_ADDED, PASSKEY_REMOVED
from cadenza.parts.site.routes import JSON, Access, Routes, endpoint, form
from cadenza.parts.site.sign_in.sign_in import SUSPENDED
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.accounts import Account


class Codes(msgspec.Struct, frozen=True):
    """Recovery codes, shown this once. None if the account has some already."""

    recovery_codes: list[str]
    csrf: str


class UsePasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credential by which the browser answered the challenge."""

    credential: dict[str, Any]


class AddPasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name for the passkey, and the credential that the browser made."""

    credential: dict[str, Any]
    name: str = ""


async def start_sign_in(visit: Visit) -> Response:
    """A challenge for any passkey of this site or, if the visitor is known, for one of that account."""
    account_id = visit.signed_in.account.id if visit.signed_in else None
    site = relying_party(visit)
    options = await visit.context.passkeys.ask_to_sign_in(site, visit.cookie, account_id, visit.now_ms)
    if visit.signed_in is None:
        visit.set_session_cookie(visit.cookie)  # the challenge is bound to it
    return Response(options, media_type=JSON)


async def sign_in(visit: Visit, given: UsePasskey) -> SignInStatus:
    """Sign in, or give the second factor. A passkey verifies its user, so it is enough by itself."""
    account = await _check(visit, given, visit.signed_in.account.id if visit.signed_in else None)
    if account.suspended_at is not None:
        raise ControlError(SUSPENDED)
    return await start_session(visit, account)


async def prove(visit: Visit, given: UsePasskey) -> SignInStatus:
    await _check(visit, given, visit.account.id)
    return await renew_session(visit, is_proof=True)


async def start_adding(visit: Visit) -> Response:
    options = await visit.context.passkeys.ask_to_add(relying_party(visit), visit.account, visit.cookie, visit.now_ms)
    return Response(options, media_type=JSON)


async def add(visit: Visit, given: AddPasskey) -> Codes:
    site, credential = relying_party(visit), msgspec.json.encode(given.credential).decode()
    codes = await visit.context.passkeys.add(site, visit.account, visit.cookie, given.name, credential, visit.now_ms)
    visit.context.send_notice(visit.account.email, PASSKEY_ADDED)
    return Codes(codes, (await renew_session(visit)).csrf)


async def remove(visit: Visit) -> None:
    await visit.context.passkeys.remove(visit.account, visit.path_param("passkey_id"), visit.now_ms)
    visit.context.send_notice(visit.account.email, PASSKEY_REMOVED)
    await renew_session(visit)


async def _check(visit: Visit, given: UsePasskey, account_id: str | None) -> Account:
    credential = msgspec.json.encode(given.credential).decode()
    return await visit.context.passkeys.check(relying_party(visit), visit.cookie, credential, account_id, visit.now_ms)


ROUTES: Routes = (
    form(SECURITY_PAGE + "/passkeys/{passkey_id}/remove", remove, SECURITY_PAGE, "passkey-removed", needs_proof=True),
    endpoint(
        "POST", "/passkeys/ask", "Ask for a challenge, to sign in with a passkey.", start_sign_in, access=Access.ANYONE
    ),
    endpoint("POST", "/sign-in/passkey", "Sign in with a passkey.", sign_in, access=Access.ANYONE),
    endpoint("POST", "/proof/passkey", "Use a passkey, for changes that need a recent proof.", prove),
    endpoint("POST", "/passkeys/ask-to-add", "Ask for a challenge, to add a passkey.", start_adding, needs_proof=True),
    endpoint("POST", "/passkeys", "Add a passkey.", add, needs_proof=True),
)
