"""Keys for operators: find one of any account, and revoke it.

The search is a POST, because an operator may paste a leaked key, and a URL must not contain a secret.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.keys import revoke_key
from cadenza.control.operator import KeySummary, find_keys
from cadenza.core.codes import KEY_PREFIX, display_prefix
from cadenza.web.errors import Missing
from cadenza.web.operator.views import OperatorKey, OperatorKeys
from cadenza.web.render import redirect
from cadenza.web.routes import Routes, endpoint, form, get, post, to_record
from cadenza.web.visit import Visit


class KeySearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of a key, its first 12 characters, or the whole key."""

    text: str


class RevokeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The account whose page the button is on; empty on the page of keys."""

    account_id: str = ""


async def keys_page(visit: Visit) -> Response:
    return visit.page("operator/keys.html", found=None, text="")


async def find_form(visit: Visit) -> Response:
    form = await visit.form(KeySearch)
    found = await find_keys(visit.store, form.text, visit.now_ms)
    return visit.page("operator/keys.html", found=found, text=_safe(form.text))


async def find(visit: Visit, asked: KeySearch) -> OperatorKeys:
    return OperatorKeys([to_record(OperatorKey, key) for key in await find_keys(visit.store, asked.text, visit.now_ms)])


async def revoke(visit: Visit) -> OperatorKey:
    return to_record(OperatorKey, await _revoke(visit))


async def revoke_by_form(visit: Visit, typed: RevokeForm) -> Response:
    key = await _revoke(visit)
    return redirect(f"/operator/accounts/{key.account_id}" if typed.account_id else "/operator/keys", "key-revoked")


async def _revoke(visit: Visit) -> KeySummary:
    key_id = visit.path_param("key_id")
    found = [key for key in await find_keys(visit.store, key_id, visit.now_ms) if key.id == key_id]
    if not found:
        raise Missing
    await revoke_key(visit.store, key_id, visit.now_ms, by=visit.actor)
    return msgspec.structs.replace(found[0], state="revoked")


def _safe(text: str) -> str:
    """What was typed; only the prefix if it looks like a key."""
    return display_prefix(text.strip()) if text.strip().startswith(KEY_PREFIX) else text


REVOKE = "/operator/keys/{key_id}/revoke"
ROUTES: Routes = (
    get("/operator/keys", keys_page),
    post("/operator/keys", find_form),
    form(REVOKE, revoke_by_form, "/operator/keys"),
    endpoint(
        "POST",
        "/operator/keys/find",
        "Find keys of any account by id, prefix or the key itself",
        find,
        scope="operator.keys:read",
    ),
    endpoint("POST", REVOKE, "Revoke a key of any account", revoke, scope="operator.keys:write"),
)
