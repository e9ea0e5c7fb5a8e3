"""Keys for operators: find one of any account, and revoke it.

The search is a POST, because an operator may paste a leaked key, and a URL must not contain a secret.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.keys import find_keys, get_key, revoke_key
from cadenza.core.codes import KEY_PREFIX, display_prefix
from cadenza.parts.site.operator.views import OperatorKeys
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.keys import OwnedKey


class KeySearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of a key, its first 12 characters, or the whole key."""

    text: str


async def keys_page(visit: Visit) -> Response:
    return visit.page("operator/keys.html", found=None, text="")


async def find_by_form(visit: Visit, text: str) -> Response:
    found = await find_keys(visit.store, text, visit.now_ms)
    return visit.page("operator/keys.html", found=found, text=_safe(text))


async def find(visit: Visit, asked: KeySearch) -> OperatorKeys:
    return OperatorKeys(await find_keys(visit.store, asked.text, visit.now_ms))


async def revoke(visit: Visit) -> OwnedKey:
    found = await get_key(visit.store, visit.operator, visit.path_param("key_id"), visit.now_ms)
    return (await revoke_key(visit.store, visit.operator, found.id, visit.now_ms)).key


async def revoke_by_form(visit: Visit, account_id: str = "") -> Response:
    """The button is on the page of an account, or on that of keys."""
    key = await revoke(visit)
    return redirect(f"/operator/accounts/{key.account_id}" if account_id else "/operator/keys", "key-revoked")


def _safe(text: str) -> str:
    """What was typed; only the prefix if it looks like a key."""
    return display_prefix(text.strip()) if text.strip().startswith(KEY_PREFIX) else text


REVOKE = "/operator/keys/{key_id}/revoke"
ROUTES: Routes = (
    get("/operator/keys", keys_page),
    form("/operator/keys", find_by_form, "/operator/keys"),
    form(REVOKE, revoke_by_form, "/operator/keys"),
    endpoint(
        "POST",
        "/operator/keys/find",
        "Find keys of any account by id, prefix or the key itself",
        find,
        "operator.keys:read",
    ),
    endpoint("POST", REVOKE, "Revoke a key of any account", revoke, "operator.keys:write"),
)
