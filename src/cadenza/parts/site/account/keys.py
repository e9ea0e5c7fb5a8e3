"""Keys: the list, a new key, and one key with its limits and its end; on pages, and on /platform/api.

The secret of a new key is in the reply to the form that created it and nowhere else: no address, cookie, log or table
has it, and no cache keeps the reply. Keys of other accounts are 404, like unknown ones.
"""

from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from cadenza.control import keys
from cadenza.control.client_settings import CLIENTS
from cadenza.control.keys import (
    ACTIVE_KEYS_MAX,
    EXPIRY_DAYS,
    NAME_CHARS_MAX,
    KeyChange,
    KeyOrder,
    change_key,
    page_keys,
    revoke_key,
)
from cadenza.control.money.idempotency import make_reference
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import SCOPES
from cadenza.parts.site.mailer import KEY_CREATED
from cadenza.parts.site.money.usage import key_usage
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.keys import Key

PAGE_KEYS_MAX = 100
EXPIRIES = {"30": "After 30 days", "90": "After 90 days", "365": "After 365 days", "never": "Never"}
SCOPE_GRANTS = {
    "inference": "Chat completions, which cost credit",
    "models": "Listing the models",
    "usage": "Reading usage and the balance",
}
assert EXPIRIES.keys() == EXPIRY_DAYS.keys()
assert SCOPE_GRANTS.keys() == set(SCOPES)


class LimitFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a key that can be changed later, as typed. Empty: the key has no rate or cap of its own."""

    name: str = ""
    rate: str = ""
    burst: str = ""
    cap: str = ""
    cap_period: str = "total"

    def values(self) -> dict[str, Any]:
        """These fields as a key has them. Empty ones are null."""
        limit = self.cap.strip()
        cap = {"limit": limit, "period": self.cap_period} if limit else None
        try:
            parse_dollars(limit or "0")
        except ValueError as error:
            raise ControlError(f"Spend cap, Dollars: {error}.") from None
        try:
            rate = float(self.rate) if self.rate.strip() else None
            burst = int(self.burst) if self.burst.strip() else None
        except ValueError:
            raise ControlError("The rate is a number like 2.5, and the burst a whole number like 10.") from None
        return {"name": self.name.strip(), "requests_per_second": rate, "burst": burst, "cap": cap}


class NewKeyForm(LimitFields, frozen=True, forbid_unknown_fields=True):
    """The form of a new key, as typed."""

    scopes: list[str] = []
    expires: str = "never"
    reference: str = ""


class CreatedKey(Key, frozen=True, kw_only=True):
    """A new key. `secret` is shown only this once."""

    secret: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, newest first. For the next ones, ask again with `before` set to the id of the last one."""

    object: Literal["list"] = "list"
    data: list[Key]
    has_more: bool


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
    form = NewKeyForm(**(visit.typed or {"scopes": [*SCOPE_GRANTS]}))
    reference = make_reference()  # so that a form that is sent twice makes one key
    return visit.page(
        "key_new.html", form=form, scopes=SCOPE_GRANTS, expiries=EXPIRIES, reference=reference, **_bounds(visit)
    )


async def key_page(visit: Visit) -> Response:
    key = await get_key(visit)
    usage, chart = await key_usage(visit, key.id)
    fields = visit.typed or _fields_of(key)
    return visit.page("key.html", key=key, usage=usage, chart=chart, form=fields, **_bounds(visit))


async def create_by_form(visit: Visit, typed: NewKeyForm) -> Response:
    """The API gives a key without scopes all of them. On the page that would be a surprise."""
    if not typed.scopes:
        raise ControlError("Tick at least one scope. The key may do what is ticked, and nothing else.")
    rest = {"scopes": typed.scopes, "expires": typed.expires, "reference": typed.reference}
    order = visit.convert(typed.values() | rest, KeyOrder)
    key = await create_key(visit, order)
    base, secret = visit.base_url, key.secret
    texts = {name: client.fill(base, secret) for name, client in CLIENTS.items()}
    return visit.page(
        "key_created.html", secret=secret, key=key, base=f"{base}/v1", clients=CLIENTS, client_texts=texts
    )


async def change_by_form(visit: Visit, typed: LimitFields) -> None:
    await patch_key(visit, visit.convert(typed.values(), KeyChange))


async def list_keys(visit: Visit, asked: KeyQuery) -> KeyList:
    is_active = asked.state == "active"
    page = await page_keys(visit.store, visit.owner, visit.now_ms, asked.before, count=asked.limit, is_active=is_active)
    return KeyList(data=list(page.keys), has_more=page.has_more)


async def create_key(visit: Visit, order: KeyOrder) -> CreatedKey:
    await visit.limit_changes("keys")
    secret, key = await keys.create_key(visit.store, visit.owner, order, visit.now_ms)
    shown_name = f'{key.prefix}… ("{key.name}")' if key.name else f"{key.prefix}…"
    visit.context.send_notice(visit.account.email, KEY_CREATED, shown_name)
    return CreatedKey(**{name: getattr(key, name) for name in Key.__struct_fields__}, secret=secret)


async def get_key(visit: Visit) -> Key:
    return await keys.get_key(visit.store, visit.owner, visit.path_param("key_id"), visit.now_ms)


async def patch_key(visit: Visit, change: KeyChange) -> Key:
    await visit.limit_changes("keys")
    return await change_key(visit.store, visit.owner, visit.path_param("key_id"), change, visit.now_ms)


async def revoke(visit: Visit) -> Key:
    await visit.limit_changes("keys")
    return (await revoke_key(visit.store, visit.owner, visit.path_param("key_id"), visit.now_ms)).key


def _fields_of(key: Key) -> LimitFields:
    rate, burst = key.requests_per_second, key.burst
    return LimitFields(
        key.name,
        "" if rate is None else str(rate).removesuffix(".0"),  # with all digits
        "" if burst is None else str(burst),
        format_dollars(key.cap.limit_nano) if key.cap else "",
        key.cap.period if key.cap else "total",
    )


def _bounds(visit: Visit) -> dict[str, object]:
    return {"usual": visit.service.gateway.snapshot.limits.rate, "name_chars_max": NAME_CHARS_MAX}


ROUTES: Routes = (
    get("/keys", list_page),
    get("/keys/new", new_page),
    form("/keys", create_by_form, "/keys/new", on_error=new_page, needs_proof=True),
    get("/keys/{key_id}", key_page),
    form("/keys/{key_id}", change_by_form, "/keys/{key_id}", "key-saved", on_error=key_page),
    form("/keys/{key_id}/revoke", revoke, "/keys", "key-revoked"),
    endpoint("GET", "/keys", "The keys of the account, newest first", list_keys, "keys:read"),
    endpoint("POST", "/keys", "Create a key; its secret is shown once", create_key, "keys:write", needs_proof=True),
    endpoint("GET", "/keys/{key_id}", "One key", get_key, "keys:read"),
    endpoint("PATCH", "/keys/{key_id}", "Rename a key, or change its limits", patch_key, "keys:write"),
    endpoint("DELETE", "/keys/{key_id}", "Revoke a key, from its next request on", revoke, "keys:write"),
)
