"""Keys: the list, a new key, and one key with its limits and its end; on pages, and on /platform/api.

The secret of a new key is in the reply to the form that created it and nowhere else: no address, cookie, log or table
has it, and no cache keeps the reply. Keys of other accounts are 404, like unknown ones.
"""

from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from cadenza.control import keys
from cadenza.control.client_settings import CLIENTS
from cadenza.control.keys import (
    ACTIVE_KEYS_MAX,
    EXPIRY_DAYS,
    NAME_CHARS_MAX,
    KeyChange,
    KeyList,
    KeyOrder,
    change_key,
    page_keys,
    revoke_key,
)
from cadenza.control.money.idempotency import make_reference
from cadenza.core.errors import ControlError
from cadenza.core.orders import copied, fields_of, typed_values
from cadenza.core.records import SCOPES, KeyLimits
from cadenza.parts.site.mailer import KEY_CREATED
from cadenza.parts.site.money.usage import key_usage
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.keys import Key

PAGE_KEYS_MAX = 100
LIMITS = [one for one in fields_of(KeyChange) if one.name in KeyLimits.__struct_fields__]
EXPIRIES = {"30": "After 30 days", "90": "After 90 days", "365": "After 365 days", "never": "Never"}
SCOPE_GRANTS = {
    "inference": "Chat completions, which cost credit",
    "models": "Listing the models",
    "usage": "Reading usage and the balance",
}
assert EXPIRIES.keys() == EXPIRY_DAYS.keys()
assert SCOPE_GRANTS.keys() == set(SCOPES)


class CreatedKey(Key, frozen=True, kw_only=True):
    """A new key. `secret` is shown only this once."""

    secret: str


class KeyQuery(msgspec.Struct, frozen=True):
    """Which keys of the account."""

    state: Literal["all", "active"] = "all"
    before: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_KEYS_MAX)] = 50


async def list_page(visit: Visit) -> Response:
    query = visit.query_fields
    shows_all, before = query.get("show") == "all", query.get("before", "")
    page = await page_keys(visit.store, visit.owner, visit.now_ms, before, is_active=not shows_all)
    return visit.page("keys.html", page=page, shows_all=shows_all, before=before, keys_max=ACTIVE_KEYS_MAX)


async def new_page(visit: Visit) -> Response:
    form = visit.typed or {**typed_values(KeyOrder), "scopes": [*SCOPE_GRANTS]}
    has_limits = any(form[one.name] for one in LIMITS) or form["cap"]
    reference = make_reference()  # so that a form that is sent twice makes one key
    parts = {"scopes": SCOPE_GRANTS, "expiries": EXPIRIES, "reference": reference, "has_limits": has_limits}
    return visit.page("key_new.html", form=form, **parts, **_bounds(visit))


async def key_page(visit: Visit) -> Response:
    key = await get_key(visit)
    usage, chart = await key_usage(visit, key.id)
    fields = visit.typed or typed_values(KeyChange, key)
    return visit.page("key.html", key=key, usage=usage, chart=chart, form=fields, **_bounds(visit))


async def create_by_form(visit: Visit, order: KeyOrder) -> Response:
    """The API gives a key without scopes all of them. On the page that would be a surprise."""
    if not order.scopes:
        raise ControlError("Tick at least one scope. The key may do what is ticked, and nothing else.")
    key = await create_key(visit, order)
    base, secret = visit.base_url, key.secret
    texts = {name: client.fill(base, secret) for name, client in CLIENTS.items()}
    return visit.page(
        "key_created.html", secret=secret, key=key, base=f"{base}/v1", clients=CLIENTS, client_texts=texts
    )


async def list_keys(visit: Visit, asked: KeyQuery) -> KeyList:
    is_active = asked.state == "active"
    return await page_keys(visit.store, visit.owner, visit.now_ms, asked.before, count=asked.limit, is_active=is_active)


async def create_key(visit: Visit, order: KeyOrder) -> CreatedKey:
    await visit.limit_changes("keys")
    secret, key = await keys.create_key(visit.store, visit.owner, order, visit.now_ms)
    shown_name = f'{key.prefix}… ("{key.name}")' if key.name else f"{key.prefix}…"
    visit.context.send_notice(visit.account.email, KEY_CREATED, shown_name)
    return copied(CreatedKey, key, secret=secret)


async def get_key(visit: Visit) -> Key:
    return await keys.get_key(visit.store, visit.owner, visit.path_param("key_id"), visit.now_ms)


async def patch_key(visit: Visit, change: KeyChange) -> Key:
    await visit.limit_changes("keys")
    return await change_key(visit.store, visit.owner, visit.path_param("key_id"), change, visit.now_ms)


async def revoke(visit: Visit) -> Key:
    await visit.limit_changes("keys")
    return (await revoke_key(visit.store, visit.owner, visit.path_param("key_id"), visit.now_ms)).key


def _bounds(visit: Visit) -> dict[str, object]:
    usual = visit.service.gateway.snapshot.limits.rate
    return {"usual": usual, "limits": LIMITS, "name_chars_max": NAME_CHARS_MAX}


ROUTES: Routes = (
    get("/keys", list_page),
    get("/keys/new", new_page),
    form("/keys", create_by_form, "/keys/new", on_error=new_page, needs_proof=True),
    get("/keys/{key_id}", key_page),
    form("/keys/{key_id}", patch_key, "/keys/{key_id}", "key-saved", on_error=key_page),
    form("/keys/{key_id}/revoke", revoke, "/keys", "key-revoked"),
    endpoint("GET", "/keys", "The keys of the account, newest first", list_keys, "keys:read"),
    endpoint("POST", "/keys", "Create a key; its secret is shown once", create_key, "keys:write", needs_proof=True),
    endpoint("GET", "/keys/{key_id}", "One key", get_key, "keys:read"),
    endpoint("PATCH", "/keys/{key_id}", "Rename a key, or change its limits", patch_key, "keys:write"),
    endpoint("DELETE", "/keys/{key_id}", "Revoke a key, from its next request on", revoke, "keys:write"),
)
