"""Keys: the list, a new key, and one key with its limits and its end; on pages, and on /platform/api.

The secret of a new key is in the reply to the form that created it and nowhere else: no address, cookie, log or table
has it, and no cache keeps the reply. Keys of other accounts are 404, like unknown ones.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from cadenza.control.email.messages import KEY_CREATED
from cadenza.control.keys import (
    ACTIVE_KEYS_MAX,
    EXPIRY_DAYS,
    NAME_CHARS_MAX,
    KeyChange,
    KeyLimits,
    KeyOrder,
    KeyView,
    change_key,
    create_own_key,
    get_own_key,
    page_own_keys,
    revoke_key,
)
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.rates import Rate
from cadenza.core.records import PERIODS, SCOPES, Cap, Period
from cadenza.web.errors import BadForm
from cadenza.web.money.usage import key_usage
from cadenza.web.routes import Routes, endpoint, form, get, to_record
from cadenza.web.visit import Visit

CHANGE_RATE = Rate(1.0, 60)  # changes of the keys of one account
TOO_MANY = "Too many changes of keys at once. Try again in a moment."
PAGE_KEYS_MAX = 100
EXPIRIES = {"30": "After 30 days", "90": "After 90 days", "365": "After 365 days", "never": "Never"}
SCOPE_GRANTS = {
    "inference": "Chat completions, which cost credit",
    "models": "Listing the models",
    "usage": "Reading usage and the balance",
}
assert EXPIRIES.keys() == EXPIRY_DAYS.keys()
assert SCOPE_GRANTS.keys() == set(SCOPES)

Scope = Literal["inference", "models", "usage"]
Expiry = Literal["30", "90", "365", "never"]


class LimitFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a key that can be changed later, as typed. Empty: the key has no rate or cap of its own."""

    name: str = ""
    rate: str = ""
    burst: str = ""
    cap: str = ""
    cap_period: str = "total"

    def limits(self) -> KeyLimits:
        try:
            rate = float(self.rate) if self.rate.strip() else None
            return KeyLimits(rate, int(self.burst) if self.burst.strip() else None)
        except ValueError:
            raise ControlError("The rate is a number like 2.5, and the burst a whole number like 10.") from None

    def chosen_cap(self) -> Cap | None:
        if not self.cap.strip():
            return None
        for period in PERIODS:
            if period == self.cap_period:
                return _parse_cap("Spend cap", self.cap.strip(), period)
        raise ControlError("A spend cap is in total or per month.")


class NewKeyForm(LimitFields, frozen=True, forbid_unknown_fields=True):
    """The form of a new key, as typed."""

    scopes: list[str] = []
    expires: str = "never"


class CapBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a key may spend: dollars like "5.00", in total or in each calendar month (UTC)."""

    limit: str
    period: Period = "total"


class NewKeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create. No scopes means all of them; without a rate, burst or cap the key has none of its own.

    A reference makes it idempotent: a repetition creates no second key, and cannot show the first one again.
    """

    name: str = ""
    scopes: list[Scope] = []
    expires: Expiry = "never"
    requests_per_second: float | None = None
    burst: int | None = None
    cap: CapBody | None = None
    reference: str = ""


class KeyChangeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change. A field that is left out stays; null removes the key's own rate, burst or cap."""

    name: str | UnsetType = UNSET
    requests_per_second: float | UnsetType | None = UNSET
    burst: int | UnsetType | None = UNSET
    cap: CapBody | UnsetType | None = UNSET


class CapObject(msgspec.Struct, frozen=True):
    """A spend cap, and what was spent in the current period."""

    limit: str
    period: Period
    spent: str


class KeyObject(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    object: Literal["key"] = "key"
    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    state: Literal["active", "revoked", "expired"]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    requests_per_second: float | None
    burst: int | None
    cap: CapObject | None


class CreatedKey(KeyObject, frozen=True, kw_only=True):
    """A new key. `secret` is shown only this once."""

    secret: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, newest first. For the next ones, ask again with `before` set to the id of the last one."""

    object: Literal["list"] = "list"
    data: list[KeyObject]
    has_more: bool


async def list_page(visit: Visit) -> Response:
    query = visit.request.query_params
    shows_all, before = query.get("show") == "all", query.get("before", "")
    page = await page_own_keys(visit.store, visit.account.id, visit.now_ms, before, is_active=not shows_all)
    return visit.page("keys.html", page=page, shows_all=shows_all, before=before, keys_max=ACTIVE_KEYS_MAX)


async def new_page(visit: Visit, error: str = "", typed: NewKeyForm | None = None) -> Response:
    values = {"form": typed or NewKeyForm(), "error": error, "scopes": SCOPE_GRANTS, "expiries": EXPIRIES}
    return visit.page("key_new.html", **values, **_bounds(visit))


async def key_page(visit: Visit, error: str = "", typed: LimitFields | None = None) -> Response:
    key = await _own_key(visit)
    usage, chart = await key_usage(visit, key.id)
    fields = typed or _fields_of(key)
    return visit.page("key.html", key=key, usage=usage, chart=chart, form=fields, error=error, **_bounds(visit))


async def create_by_form(visit: Visit, typed: NewKeyForm) -> Response:
    await visit.limit("keys", CHANGE_RATE, TOO_MANY)
    order = KeyOrder(typed.name.strip(), typed.scopes, typed.expires, typed.limits(), typed.chosen_cap())
    secret, key = await _create(visit, order)
    return visit.page("key_created.html", secret=secret, key=key, base=f"{visit.base_url}/v1")


async def change_by_form(visit: Visit, typed: LimitFields) -> None:
    """Change only what the form changes, so that the audit log has nothing else."""
    await visit.limit("keys", CHANGE_RATE, TOO_MANY)
    key = await _own_key(visit)
    name, limits, cap = typed.name.strip(), typed.limits(), typed.chosen_cap()
    change = KeyChange(
        UNSET if name == key.name else name,
        UNSET if limits == key.limits else limits,
        UNSET if cap == key.cap else cap,
    )
    if change != KeyChange():
        await _change(visit, change)


async def list_keys(visit: Visit) -> KeyList:
    query = visit.request.query_params
    state, limit = query.get("state", "all"), query.get("limit", "50")
    if state not in {"all", "active"}:
        raise BadForm("state: must be all or active.")
    if not (limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= PAGE_KEYS_MAX):
        raise BadForm(f"limit: must be from 1 to {PAGE_KEYS_MAX}.")
    page = await page_own_keys(
        visit.store,
        visit.account.id,
        visit.now_ms,
        query.get("before", ""),
        count=int(limit),
        is_active=state == "active",
    )
    return KeyList(data=[_to_object(key) for key in page.keys], has_more=page.has_more)


async def create_key(visit: Visit, body: NewKeyBody) -> CreatedKey:
    await visit.limit("keys", CHANGE_RATE, TOO_MANY)
    limits = KeyLimits(body.requests_per_second, body.burst)
    order = KeyOrder(body.name, body.scopes, body.expires, limits, _cap_of(body.cap), body.reference)
    secret, key = await _create(visit, order)
    return CreatedKey(**msgspec.structs.asdict(_to_object(key)), secret=secret)


async def get_key(visit: Visit) -> KeyObject:
    return _to_object(await _own_key(visit))


async def patch_key(visit: Visit, body: KeyChangeBody) -> KeyObject:
    await visit.limit("keys", CHANGE_RATE, TOO_MANY)
    limits: KeyLimits | UnsetType = UNSET
    if body.requests_per_second is not UNSET or body.burst is not UNSET:
        old = (await _own_key(visit)).limits
        rate = old.requests_per_second if body.requests_per_second is UNSET else body.requests_per_second
        limits = KeyLimits(rate, old.burst if body.burst is UNSET else body.burst)
    cap = UNSET if body.cap is UNSET else _cap_of(body.cap)
    return _to_object(await _change(visit, KeyChange(body.name, limits, cap)))


async def revoke(visit: Visit) -> KeyObject:
    await visit.limit("keys", CHANGE_RATE, TOO_MANY)
    account = visit.account
    done = await revoke_key(visit.store, visit.path_param("key_id"), visit.now_ms, account.id, by=visit.actor)
    return _to_object(done.key)


async def _own_key(visit: Visit) -> KeyView:
    return await get_own_key(visit.store, visit.account.id, visit.path_param("key_id"), visit.now_ms)


async def _create(visit: Visit, order: KeyOrder) -> tuple[str, KeyView]:
    account = visit.account
    secret, key = await create_own_key(visit.store, account.id, order, visit.now_ms, by=visit.actor)
    shown_name = f'{key.prefix}… ("{key.name}")' if key.name else f"{key.prefix}…"
    visit.context.send_notice(account.email, KEY_CREATED, shown_name)
    return secret, key


async def _change(visit: Visit, change: KeyChange) -> KeyView:
    account, key_id = visit.account, visit.path_param("key_id")
    return await change_key(visit.store, key_id, change, visit.now_ms, account.id, by=visit.actor)


def _fields_of(key: KeyView) -> LimitFields:
    rate, burst = key.limits.requests_per_second, key.limits.burst
    return LimitFields(
        key.name,
        "" if rate is None else f"{rate:g}",
        "" if burst is None else str(burst),
        format_dollars(key.cap.limit_nano) if key.cap else "",
        key.cap.period if key.cap else "total",
    )


def _bounds(visit: Visit) -> dict[str, object]:
    return {"usual": visit.context.gateway.snapshot.limits.rate, "name_chars_max": NAME_CHARS_MAX}


def _cap_of(body: CapBody | None) -> Cap | None:
    return _parse_cap("cap.limit", body.limit, body.period) if body else None


def _parse_cap(field: str, text: str, period: Period) -> Cap:
    try:
        return Cap(parse_dollars(text), period)
    except ValueError as error:
        raise BadForm(f"{field}: {error}.") from None


def _to_object(key: KeyView) -> KeyObject:
    cap = None
    if key.cap:
        cap = CapObject(format_dollars(key.cap.limit_nano), key.cap.period, format_dollars(key.spent_nano))
    return to_record(KeyObject, key, cap=cap, **msgspec.structs.asdict(key.limits))


ROUTES: Routes = (
    get("/keys", list_page),
    get("/keys/new", new_page, needs_proof=True),
    form("/keys", create_by_form, "/keys/new", on_error=new_page, needs_proof=True),
    get("/keys/{key_id}", key_page),
    form("/keys/{key_id}", change_by_form, "/keys/{key_id}", "key-saved", on_error=key_page),
    form("/keys/{key_id}/revoke", revoke, "/keys", "key-revoked"),
    endpoint("GET", "/keys", "The keys of the account, newest first", list_keys, scope="keys:read"),
    endpoint(
        "POST", "/keys", "Create a key; its secret is shown once", create_key, needs_proof=True, scope="keys:write"
    ),
    endpoint("GET", "/keys/{key_id}", "One key", get_key, scope="keys:read"),
    endpoint("PATCH", "/keys/{key_id}", "Rename a key, or change its limits", patch_key, scope="keys:write"),
    endpoint("DELETE", "/keys/{key_id}", "Revoke a key, from its next request on", revoke, scope="keys:write"),
)
