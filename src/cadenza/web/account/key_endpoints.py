"""Keys on /platform/api: the same acts as on the pages, with JSON."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.control.email.messages import KEY_CREATED
from cadenza.control.keys import (
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
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import Cap, Period
from cadenza.web.account.keys import name_of, own_keys, take_turn
from cadenza.web.account.proof import require_proof
from cadenza.web.errors import BadForm
from cadenza.web.routes import Endpoint, Routes
from cadenza.web.visit import Visit

PAGE_KEYS_MAX = 100

Scope = Literal["inference", "models", "usage"]
Expiry = Literal["30", "90", "365", "never"]


class CapBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a key may spend: dollars like "5.00", in total or in each calendar month (UTC)."""

    limit: str
    period: Period = "total"


class NewKeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create. No scopes means all of them; no rate, burst or cap means none of its own.

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
    """A spend cap, and what is spent of it in its period."""

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


async def list_keys(visit: Visit) -> KeyList:
    query = visit.request.query_params
    state = query.get("state", "all")
    if state not in {"all", "active"}:
        raise BadForm("state: must be all or active.")
    page = await page_own_keys(
        visit.context.store,
        visit.account.id,
        visit.now_ms,
        query.get("before", ""),
        count=_count(query.get("limit", "50")),
        is_active=state == "active",
    )
    return KeyList(data=[_object(key) for key in page.keys], has_more=page.has_more)


async def create_key(visit: Visit, body: NewKeyBody) -> CreatedKey:
    require_proof(visit)
    await take_turn(visit)
    limits = KeyLimits(body.requests_per_second, body.burst)
    order = KeyOrder(body.name, body.scopes, body.expires, limits, _cap(body.cap), body.reference)
    secret, key = await create_own_key(
        visit.context.store, visit.account.id, order, visit.now_ms, by=visit.account.email
    )
    visit.context.send_notice(visit.account.email, KEY_CREATED, name_of(key))
    return CreatedKey(**msgspec.structs.asdict(_object(key)), secret=secret)


async def get_key(visit: Visit) -> KeyObject:
    return _object(await _own_key(visit))


async def patch_key(visit: Visit, body: KeyChangeBody) -> KeyObject:
    await take_turn(visit)
    key = await _own_key(visit)
    change = KeyChange(body.name, _limits(key, body), UNSET if body.cap is UNSET else _cap(body.cap))
    with own_keys():
        changed = await change_key(
            visit.context.store, key.id, change, visit.now_ms, visit.account.id, by=visit.account.email
        )
    return _object(changed)


async def revoke(visit: Visit) -> KeyObject:
    await take_turn(visit)
    key_id, account = visit.request.path_params["key_id"], visit.account
    with own_keys():
        revocation = await revoke_key(visit.context.store, key_id, visit.now_ms, account.id, by=account.email)
    return _object(revocation.key)


async def _own_key(visit: Visit) -> KeyView:
    with own_keys():
        return await get_own_key(
            visit.context.store, visit.account.id, visit.request.path_params["key_id"], visit.now_ms
        )


def _limits(key: KeyView, body: KeyChangeBody) -> KeyLimits | UnsetType:
    """The new limits, of which one may stay as it is."""
    if body.requests_per_second is UNSET and body.burst is UNSET:
        return UNSET
    rate = key.limits.requests_per_second if body.requests_per_second is UNSET else body.requests_per_second
    return KeyLimits(rate, key.limits.burst if body.burst is UNSET else body.burst)


def _cap(body: CapBody | None) -> Cap | None:
    if body is None:
        return None
    try:
        return Cap(parse_dollars(body.limit), body.period)
    except ValueError as error:
        raise BadForm(f"cap.limit: {error}.") from None


def _object(key: KeyView) -> KeyObject:
    cap = key.cap
    return KeyObject(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        scopes=key.scopes,
        state=key.state,
        created_at=rfc3339(key.created_at),
        expires_at=rfc3339_or_none(key.expires_at),
        last_used_at=rfc3339_or_none(key.last_used_at),
        requests_per_second=key.limits.requests_per_second,
        burst=key.limits.burst,
        cap=CapObject(format_dollars(cap.limit_nano), cap.period, format_dollars(key.spent_nano)) if cap else None,
    )


def _count(text: str) -> int:
    if text.isdecimal() and len(text) < 10 and 1 <= int(text) <= PAGE_KEYS_MAX:
        return int(text)
    raise BadForm(f"limit: must be from 1 to {PAGE_KEYS_MAX}.")


ROUTES: Routes = (
    Endpoint("GET", "/keys", "The keys of the account, newest first", list_keys, returns=KeyList),
    Endpoint("POST", "/keys", "Create a key; its secret is shown once", create_key, NewKeyBody, CreatedKey),
    Endpoint("GET", "/keys/{key_id}", "One key", get_key, returns=KeyObject),
    Endpoint("PATCH", "/keys/{key_id}", "Rename a key, or change its limits", patch_key, KeyChangeBody, KeyObject),
    Endpoint("DELETE", "/keys/{key_id}", "Revoke a key, from its next request on", revoke, returns=KeyObject),
)
