"""Passkeys: endpoints for the script of the pages, because a browser makes and uses passkeys only by script."""

from typing import Any

import msgspec
from starlette.responses import Response

from cadenza.control.email.messages import PASSKEY_ADDED, PASSKEY_REMOVED
from cadenza.control.sign_in.passkeys import NewPasskey
from cadenza.control.sign_in.sign_in import SUSPENDED
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.web.account.proof import SECURITY_PAGE, require_proof, with_proof
from cadenza.web.account.second_factor import Codes, reply_codes
from cadenza.web.account.sign_in import Empty
from cadenza.web.errors import Missing
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, post
from cadenza.web.session_cookies import Step, enter, fill, passkey_site, rotate
from cadenza.web.visit import Visit


class AddPasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name for the passkey, and the credential that the browser made."""

    credential: dict[str, Any]
    name: str = ""


class UsePasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credential by which the browser answered the challenge."""

    credential: dict[str, Any]


class PasskeyRecord(msgspec.Struct, frozen=True):
    """A passkey of the account."""

    id: str
    name: str
    created_at: str
    last_used_at: str | None


class PasskeyList(msgspec.Struct, frozen=True):
    """The passkeys of the account, oldest first."""

    data: list[PasskeyRecord]
    object: str = "list"


async def ask(visit: Visit) -> Response:
    """A challenge for any passkey of this site or, if the visitor is known, for one of that account."""
    account_id = visit.signed_in.account.id if visit.signed_in else None
    site = passkey_site(visit)
    options = await visit.context.passkeys.ask_to_sign_in(site, visit.cookie, account_id, visit.now_ms)
    response = Response(options, media_type="application/json")
    if visit.signed_in is None:
        visit.set_cookie(response, visit.cookie)  # the challenge is tied to it
    return response


async def sign_in(visit: Visit, given: UsePasskey) -> Response:
    """Sign in, or give the second factor. A passkey verifies its user, so it is enough by itself."""
    account_id = visit.signed_in.account.id if visit.signed_in else None
    account = await visit.context.passkeys.check(
        passkey_site(visit), visit.cookie, _encode(given.credential), account_id, visit.now_ms
    )
    if account.suspended_at is not None:
        raise ControlError(SUSPENDED)
    response = Response()
    return fill(response, await enter(visit, account, "complete", response))


async def prove(visit: Visit, given: UsePasskey) -> Response:
    await visit.context.passkeys.check(
        passkey_site(visit), visit.cookie, _encode(given.credential), visit.account.id, visit.now_ms
    )
    response = Response()
    return fill(response, await rotate(visit, response, is_proof=True))


async def ask_to_add(visit: Visit) -> Response:
    require_proof(visit)
    options = await visit.context.passkeys.ask_to_add(passkey_site(visit), visit.account, visit.cookie, visit.now_ms)
    return Response(options, media_type="application/json")


async def add(visit: Visit, given: AddPasskey) -> Response:
    require_proof(visit)
    new = NewPasskey(given.name, _encode(given.credential))
    codes = await visit.context.passkeys.add(passkey_site(visit), visit.account, visit.cookie, new, visit.now_ms)
    visit.context.send_notice(visit.account.email, PASSKEY_ADDED)
    return await reply_codes(visit, codes)


async def list_passkeys(visit: Visit) -> PasskeyList:
    found = await visit.context.passkeys.list(visit.account.id)
    return PasskeyList(
        [PasskeyRecord(one.id, one.name, rfc3339(one.created_at), rfc3339_or_none(one.last_used_at)) for one in found]
    )


async def api_remove(visit: Visit) -> Response:
    require_proof(visit)
    await _remove(visit)
    return await reply_codes(visit, [])


async def remove(visit: Visit) -> Response:
    await visit.form(Empty)
    await _remove(visit)
    response = redirect(SECURITY_PAGE, "passkey-removed")
    await rotate(visit, response)
    return response


async def _remove(visit: Visit) -> None:
    passkey_id = str(visit.request.path_params["passkey_id"])
    if not await visit.context.passkeys.remove(visit.account, passkey_id, visit.now_ms):
        raise Missing("There is no such passkey.")
    visit.context.send_notice(visit.account.email, PASSKEY_REMOVED)


def _encode(credential: dict[str, Any]) -> str:
    return msgspec.json.encode(credential).decode()


ROUTES: Routes = (
    post("/settings/security/passkeys/{passkey_id}/remove", with_proof(remove)),
    Endpoint("POST", "/passkeys/ask", "Ask for a challenge, to sign in with a passkey.", ask, access=Access.ANYONE),
    Endpoint("POST", "/sign-in/passkey", "Sign in with a passkey.", sign_in, UsePasskey, Step, Access.ANYONE),
    Endpoint("POST", "/proof/passkey", "Use a passkey, for changes that need a recent proof.", prove, UsePasskey, Step),
    Endpoint("POST", "/passkeys/ask-to-add", "Ask for a challenge, to add a passkey.", ask_to_add),
    Endpoint("POST", "/passkeys", "Add a passkey.", add, AddPasskey, Codes),
    Endpoint("GET", "/passkeys", "List the passkeys.", list_passkeys, returns=PasskeyList),
    Endpoint("DELETE", "/passkeys/{passkey_id}", "Remove a passkey.", api_remove, returns=Codes),
)
