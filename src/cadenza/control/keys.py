"""Keys: create, list, change, revoke. A secret is shown once; only its digest and prefix are stored.

A change is complete when it holds in every process: no process accepts a key once `revoke_key` has returned. An
owner finds keys by id, and only those of the account. An operator finds any key but the web chat's, by id, prefix or
secret.
Every change is in the audit log. An account has a bounded number of keys.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from cadenza.control.money.idempotency import Reference, make_command
from cadenza.core.codes import DISPLAY_CHARS, KEY_PREFIX, digest_key, display_prefix, is_well_formed, make_key
from cadenza.core.config_keys import DOLLARS, above_zero, one_line, one_of, whole
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.orders import Shown, check_order, copied, fields_of
from cadenza.core.records import SCOPES, Actor, Cap, KeyLimits, Owner, Period
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.ledger import cap_rows
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events, keys
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.store.tables.keys import Key, NewKey, OwnedKey

EXPIRY_DAYS: dict[str, int | None] = {"30": 30, "90": 90, "365": 365, "never": None}
NAME_CHARS_MAX = 100
RATE_MAX = 1_000_000
ACTIVE_KEYS_MAX = 1_000
NEW_KEYS_A_DAY_MAX = 1_000
FOUND_MAX = 100


# fmt: off
class CapOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a key may spend: dollars like "5.00", in total or in each calendar month (UTC)."""

    limit: Annotated[str, DOLLARS, Shown("Spend cap, Dollars", metavar="DOLLARS", usual="no cap"), "The most that the key may spend, like 5.00."]
    period: Annotated[Period, Shown("Period"), "In all, or in each month."] = "total"


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change. A field that is left out stays; null removes the key's own rate, burst or cap."""

    name: Annotated[str | UnsetType, one_line(NAME_CHARS_MAX), Shown("Name", metavar="TEXT"), "What the key is for."] = UNSET
    requests_per_second: Annotated[float | UnsetType | None, above_zero(RATE_MAX), Shown("Requests a second", "rate", usual="the rate in the config", removed_by="default"), "Requests per second for this key."] = UNSET
    burst: Annotated[int | UnsetType | None, whole(1, RATE_MAX), Shown("Burst", usual="the burst in the config", removed_by="default"), "Requests at once for this key."] = UNSET
    cap: CapOrder | UnsetType | None = UNSET


class KeyOrder(KeyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key to create. No scopes means all of them; without a rate, burst or cap the key has none of its own.

    A reference makes it idempotent: a repetition creates no second key, and cannot show the first one again.
    """

    scopes: Annotated[Sequence[str], one_of(*SCOPES), Shown("Scopes", "scope", "SCOPE", "all"), "inference, models or usage; repeat it for several."] = ()
    expires: Annotated[str, one_of(*EXPIRY_DAYS), Shown("Expires", metavar="DAYS"), "30, 90 or 365 days, or never."] = "never"
    reference: Reference = ""
# fmt: on


class RevokedKey(msgspec.Struct, frozen=True):
    """A revoked key, and whether it was revoked before."""

    key: OwnedKey
    was_revoked: bool


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, newest first. For the next ones, ask again with `before` set to the id of the last one."""

    object: Literal["list"] = "list"
    data: list[Key]
    has_more: bool


async def create_key(store: Store, owner: Owner, order: KeyOrder, now_ms: int) -> tuple[str, OwnedKey]:
    """Return the secret, which is not stored, and the record of the key."""
    ordered, cap, days = check_order(order), _cap_of(order) or None, EXPIRY_DAYS[order.expires]
    secret, key_id = make_key(), "key_" + secrets.token_urlsafe(18)
    name, limits = order.name or "", (order.requests_per_second or None, order.burst or None)
    former = (owner.account_id, name, sorted(order.scopes), order.expires, limits, cap)
    command = make_command(owner, "key.create", (owner.account_id, ordered), order.reference, key_id, former)
    key = copied(
        NewKey,
        order,
        name=name,
        scopes=frozenset(order.scopes),
        id=key_id,
        account_id=owner.account_id,
        prefix=display_prefix(secret),
        created_at=now_ms,
        expires_at=None if days is None else now_ms + days * DAY_MS,
        token=owner.token,
    )

    def create(tx: Transaction) -> OwnedKey:
        claim = command.claim(tx, now_ms)
        if claim.earlier:
            raise _made_before(tx, claim.earlier.subject, now_ms)
        if not claim.is_new:
            [created] = keys.find(tx, "id", key_id, now_ms)
            return created
        _check_room(tx, key.account_id, now_ms)
        keys.add(tx, key, digest_key(secret.encode()))
        if cap:
            cap_rows.set_cap(tx, key.account_id, key.id, cap, now_ms)
        [created] = keys.find(tx, "id", key.id, now_ms)
        detail = f"{created.prefix} {' '.join(order.scopes) or 'all scopes'}, expires {order.expires}"
        audit_events.add(tx, AuditEvent(now_ms, owner, "key.create", created.account_id, created.id, detail))
        return created

    return secret, await command.run(lambda: make_change(store, create))


def _made_before(tx: Transaction, key_id: str, now_ms: int) -> ControlError:
    found = keys.find(tx, "id", key_id, now_ms)
    prefix = f"{found[0].prefix}… " if found else ""
    return ControlError(
        f"The same form or reference made the key {prefix}({key_id}) before. A key is shown only once: "
        "if you did not keep it, revoke it and create another."
    )


async def list_keys(store: Store, owner: Owner, now_ms: int) -> list[OwnedKey]:
    """List the keys of an account, oldest first, including revoked and expired ones."""
    return (await keys.list_page(store, owner.account_id, now_ms))[::-1]


async def page_keys(
    store: Store, owner: Owner, now_ms: int, before: str = "", *, count: int = 50, is_active: bool = False
) -> KeyList:
    """A page of an account's keys, newest first, after the key `before`. The key of the web chat is left out."""
    found = await keys.list_page(store, owner.account_id, now_ms, before, count + 1, is_active=is_active)
    return KeyList(data=list(found[:count]), has_more=len(found) > count)


async def get_key(store: Store, by: Actor, key_id: str, now_ms: int) -> OwnedKey:
    column, value = _place_of(key_id)
    found = await keys.list_newest(store, column, value, now_ms, 1) if column == "id" and value else []
    if not found or (isinstance(by, Owner) and (found[0].is_web or found[0].account_id != by.account_id)):
        raise Unknown("key")
    return found[0]


async def find_keys(store: Store, text: str, now_ms: int) -> list[OwnedKey]:
    """The keys with this id or displayed prefix, or the key that was pasted: of any account, and of the web chat."""
    column, value = _place_of(text.strip())
    return await keys.list_newest(store, column, value, now_ms, FOUND_MAX) if value else []


async def revoke_key(store: Store, by: Actor, text: str, now_ms: int) -> RevokedKey:
    """Revoke a key. If several match, the only active one is meant."""

    def revoke(tx: Transaction) -> RevokedKey:
        key = _find_one(tx, by, text, now_ms)
        is_first = keys.revoke(tx, key.id, now_ms)
        if is_first:
            audit_events.add(tx, AuditEvent(now_ms, by, "key.revoke", key.account_id, key.id, key.prefix))
        return RevokedKey(msgspec.structs.replace(key, state="revoked"), not is_first)

    return await make_change(store, revoke)


async def change_key(store: Store, by: Actor, text: str, change: KeyChange, now_ms: int) -> OwnedKey:
    """Change the name, the limits and the spend cap of a key, or some of them. The next request sees it."""
    check_order(change)
    cap = _cap_of(change)

    def make(tx: Transaction) -> OwnedKey:
        key = _find_one(tx, by, text, now_ms)
        for event, detail in _apply(tx, key, change, cap, now_ms):
            audit_events.add(tx, AuditEvent(now_ms, by, event, key.account_id, key.id, detail))
        [changed] = keys.find(tx, "id", key.id, now_ms)
        return changed

    return await make_change(store, make)


def _apply(
    tx: Transaction, key: OwnedKey, change: KeyChange, cap: Cap | UnsetType | None, now_ms: int
) -> Iterator[tuple[str, str]]:
    """Make each part of a change that changes something, and yield the name and the detail of its audit event."""
    if change.name not in {UNSET, key.name}:
        keys.change(tx, key.id, name=change.name)
        yield "key.rename", ""
    limits = copied(KeyLimits, key, change)
    if limits != copied(KeyLimits, key):
        keys.change(tx, key.id, **asdict(limits))
        yield "key.limit", say_limits(limits)
    if cap is not UNSET and cap != _cap_of_key(key):
        cap_rows.set_cap(tx, key.account_id, key.id, cap, now_ms)
        yield "key.cap", f"{format_dollars(cap.limit_nano)} {cap.period}" if cap else "none"


def say_limits(limits: KeyLimits, usual: str = "usual") -> str:
    """Each limit with its name: rate 2.5, burst usual."""
    names = {one.name: one.option.removeprefix("--").replace("-", " ") for one in fields_of(KeyChange)}
    return ", ".join(f"{names[name]} {usual if one is None else one}" for name, one in asdict(limits).items())


def _cap_of_key(key: OwnedKey) -> Cap | None:
    return Cap(key.cap.limit_nano, key.cap.period) if key.cap else None


def _find_one(tx: Transaction, by: Actor, text: str, now_ms: int) -> OwnedKey:
    column, value = _place_of(text)
    known = keys.find(tx, column, value, now_ms) if value else []
    found = [key for key in known if not key.is_web]
    if isinstance(by, Owner):
        found = [key for key in found if key.id == text and key.account_id == by.account_id]
    elif known and known[0].id == text and not found:
        raise ControlError("This key belongs to the web chat and is known to nobody. Suspend the account instead.")
    matches = [key for key in found if key.state == "active"] or found
    if not matches:
        raise Unknown("key", f"No key matches {_safe(text)}. 'cadenza key list --account EMAIL' shows its keys.")
    if len(matches) > 1:
        ids = ", ".join(key.id for key in reversed(matches))
        raise ControlError(f"More than one key matches {_safe(text)}: name it by id, one of {ids}.")
    return matches[0]


def _place_of(text: str) -> tuple[str, str | bytes]:
    """The column in which a key is found, and the value: an empty one if no key can have it."""
    if is_well_formed(text.encode(errors="surrogateescape")):
        return "digest", digest_key(text.encode())
    return "prefix" if len(text) == DISPLAY_CHARS else "id", text if text.isascii() and text.isprintable() else ""


def _safe(text: str) -> str:
    """What was typed, for a message: of a key, only the prefix."""
    return f"{display_prefix(text)}…" if text.startswith(KEY_PREFIX) else repr(text)


def _check_room(tx: Transaction, account_id: str, now_ms: int) -> None:
    """Refuse a key beyond the bounds of an account, which is locked so that concurrent requests are counted."""
    accounts.lock_account(tx, account_id)
    active, new = keys.count(tx, account_id, now_ms, now_ms - DAY_MS)
    if active >= ACTIVE_KEYS_MAX:
        raise ControlError(f"An account has at most {ACTIVE_KEYS_MAX:,} active keys: revoke one first.")
    if new >= NEW_KEYS_A_DAY_MAX:
        raise ControlError(f"An account can create {NEW_KEYS_A_DAY_MAX:,} keys in 24 hours: try again later.")


def _cap_of(change: KeyChange) -> Cap | UnsetType | None:
    cap = change.cap
    return Cap(parse_dollars(cap.limit), cap.period) if isinstance(cap, CapOrder) else cap
