"""Keys: create, list, change, revoke. A secret is shown once; only its digest and prefix are stored.

A change is complete when it holds in every process: no process accepts a key once `revoke_key` has returned. With an
`account_id`, a function works for the owner of that account: it finds keys by id, and only those of the account.
Without it, it works for an operator or the command line: it finds any key but the web chat's, by id, prefix or secret.
Every change is in the audit log. An account has a bounded number of keys.
"""

import secrets
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.control.account.accounts import get_account
from cadenza.control.money.idempotency import make_command
from cadenza.core.codes import KEY_PREFIX, digest_key, display_prefix, is_well_formed, make_key
from cadenza.core.errors import ControlError
from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars
from cadenza.core.records import COMMAND_LINE, PERIODS, SCOPES, Cap
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.ledger import cap_rows
from cadenza.ledger.caps import month_of
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events, keys, operators
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.store.tables.keys import KeyOrigin, KeyRecord, KeyState, NewKey

EXPIRY_DAYS = {"30": 30, "90": 90, "365": 365, "never": None}
NAME_CHARS_MAX = 100
RATE_MAX = 1_000_000
ACTIVE_KEYS_MAX = 1_000
NEW_KEYS_A_DAY_MAX = 1_000


class UnknownKey(ControlError):
    """There is no such key, or it belongs to another account."""


class KeyLimits(msgspec.Struct, frozen=True):
    """The limits of one key. None means the limit that applies to every key."""

    requests_per_second: float | None = None
    burst: int | None = None


class KeyView(msgspec.Struct, frozen=True):
    """A key as its owner sees it, with all its scopes: none in the store means all."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    state: KeyState
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    limits: KeyLimits = KeyLimits()
    cap: Cap | None = None
    spent_nano: int = 0  # of the cap, in its period
    origin: KeyOrigin = "owner"


class RevokedKey(msgspec.Struct, frozen=True):
    """A revoked key, and whether it was revoked before."""

    key: KeyView
    was_revoked: bool


class KeyOrder(msgspec.Struct, frozen=True):
    """The key to create. No scopes means all of them. A reference makes it idempotent."""

    name: str = ""
    scopes: Sequence[str] = ()
    expires: str = "never"
    limits: KeyLimits = KeyLimits()
    cap: Cap | None = None
    reference: str = ""


class KeyChange(msgspec.Struct, frozen=True):
    """The fields of a key to change. Those left out stay as they are."""

    name: str | UnsetType = UNSET
    limits: KeyLimits | UnsetType = UNSET
    cap: Cap | UnsetType | None = UNSET


class KeyPage(msgspec.Struct, frozen=True):
    """Some keys of an account, newest first, and whether there are more."""

    keys: list[KeyView]
    has_more: bool


async def create_key(store: Store, email: str, order: KeyOrder, now_ms: int) -> tuple[str, KeyView]:
    """`create_own_key` at the command line, which knows an account by its address."""
    return await create_own_key(store, (await get_account(store, email)).id, order, now_ms, by=COMMAND_LINE)


async def create_own_key(
    store: Store, account_id: str, order: KeyOrder, now_ms: int, *, by: str
) -> tuple[str, KeyView]:
    """Return the secret, which is not stored, and the record of the key."""
    _check_name(order.name)
    _check_scopes(order.scopes)
    _check_limits(order.limits)
    _check_cap(order.cap)
    days = _days(order.expires)
    secret, key_id = make_key(), "key_" + secrets.token_urlsafe(18)
    arguments = (account_id, order.name, sorted(order.scopes), order.expires, order.limits, order.cap)
    command = make_command(by, "key.create", arguments, order.reference, key_id)

    def create(tx: Transaction) -> KeyRecord:
        claim = command.claim(tx, now_ms)
        if claim.earlier:
            raise _made_before(tx, claim.earlier.subject)
        if not claim.is_new:
            [created] = keys.find_by_prefix_or_id(tx, key_id)
            return created
        key = NewKey(
            id=key_id,
            account_id=account_id,
            name=order.name,
            prefix=display_prefix(secret),
            scopes=frozenset(order.scopes),
            created_at=now_ms,
            expires_at=None if days is None else now_ms + days * DAY_MS,
            requests_per_second=order.limits.requests_per_second,
            burst=order.limits.burst,
        )
        _check_room(tx, key.account_id, now_ms)
        keys.add(tx, key, digest_key(secret.encode()))
        if order.cap:
            cap_rows.set_cap(tx, key.account_id, key.id, order.cap, now_ms)
        [created] = keys.find_by_prefix_or_id(tx, key.id)
        detail = f"{created.prefix} {' '.join(order.scopes) or 'all scopes'}, expires {order.expires}"
        audit_events.add(tx, AuditEvent(now_ms, by, "key.create", created.account_id, created.id, detail))
        return created

    return secret, _view(await command.run(lambda: make_change(store, create)), now_ms)


def _made_before(tx: Transaction, key_id: str) -> ControlError:
    found = keys.find_by_prefix_or_id(tx, key_id)
    prefix = f"{found[0].prefix}… " if found else ""
    return ControlError(
        f"With this reference, the key {prefix}({key_id}) was made before. A key is shown only once: "
        "revoke this one, and create another without the reference."
    )


async def list_keys(store: Store, email: str, now_ms: int) -> list[KeyView]:
    """List the keys of an account, oldest first, including revoked and expired ones."""
    return await list_own_keys(store, (await get_account(store, email)).id, now_ms)


async def list_own_keys(store: Store, account_id: str, now_ms: int, *, with_web: bool = False) -> list[KeyView]:
    """`list_keys` by the account's id. The key of the web chat is left out unless `with_web`."""
    found = await keys.list_for_account(store, account_id, with_web=with_web)
    return [_view(key, now_ms) for key in found]


async def page_own_keys(
    store: Store, account_id: str, now_ms: int, before: str = "", *, count: int = 50, is_active: bool = False
) -> KeyPage:
    """A page of an account's keys, newest first, after the key `before`. The key of the web chat is left out."""
    found = await keys.list_page(store, account_id, before, count + 1, now_ms if is_active else None)
    return KeyPage([_view(key, now_ms) for key in found[:count]], len(found) > count)


async def get_own_key(store: Store, account_id: str, key_id: str, now_ms: int) -> KeyView:
    found = await keys.get_own(store, account_id, key_id)
    if found is None:
        raise UnknownKey("There is no such key.")
    return _view(found, now_ms)


async def revoke_key(
    store: Store, text: str, now_ms: int, account_id: str | None = None, *, by: str = COMMAND_LINE
) -> RevokedKey:
    """Revoke a key. If several match, the only active one is meant."""

    def revoke(tx: Transaction) -> RevokedKey:
        key = _find_one(tx, text, now_ms, account_id)
        is_first = keys.revoke(tx, key.id, now_ms)
        if is_first:
            audit_events.add(tx, AuditEvent(now_ms, by, "key.revoke", key.account_id, key.id, key.prefix))
        return RevokedKey(_view(msgspec.structs.replace(key, revoked_at=now_ms), now_ms), not is_first)

    return await make_change(store, revoke)


async def change_key(
    store: Store, text: str, change: KeyChange, now_ms: int, account_id: str | None = None, *, by: str = COMMAND_LINE
) -> KeyView:
    """Change the name, the limits and the spend cap of a key, or some of them. The next request sees it."""
    if change.name is not UNSET:
        _check_name(change.name)
    if change.limits is not UNSET:
        _check_limits(change.limits)
    if change.cap is not UNSET:
        _check_cap(change.cap)

    def make(tx: Transaction) -> KeyView:
        key = _find_one(tx, text, now_ms, account_id)
        for event, detail in _apply(tx, key, change, now_ms):
            audit_events.add(tx, AuditEvent(now_ms, by, event, key.account_id, key.id, detail))
        [changed] = keys.find_by_prefix_or_id(tx, key.id)
        return _view(changed, now_ms)

    return await make_change(store, make)


def _apply(tx: Transaction, key: KeyRecord, change: KeyChange, now_ms: int) -> Iterator[tuple[str, str]]:
    """Make each part of a change, and yield the name and the detail of its audit event."""
    if change.name is not UNSET:
        keys.change(tx, key.id, name=change.name)
        yield "key.rename", ""
    if change.limits is not UNSET:
        rate, burst = change.limits.requests_per_second, change.limits.burst
        keys.change(tx, key.id, requests_per_second=rate, burst=burst)
        yield "key.limit", f"rate {'usual' if rate is None else rate}, burst {'usual' if burst is None else burst}"
    if change.cap is not UNSET:
        cap_rows.set_cap(tx, key.account_id, key.id, change.cap, now_ms)
        yield "key.cap", f"{format_dollars(change.cap.limit_nano)} {change.cap.period}" if change.cap else "none"


def _find_one(tx: Transaction, text: str, now_ms: int, account_id: str | None) -> KeyRecord:
    found = _find(tx, text)
    if account_id is not None:
        found = [key for key in found if key.id == text and key.account_id == account_id]
    matches = [key for key in found if keys.state_of(key, now_ms) == "active"] or found
    if not matches:
        if account_id is None and _is_plain(text) and operators.find_key(tx, text):
            raise ControlError("This key belongs to the web chat and is known to nobody. Suspend the account instead.")
        raise UnknownKey(f"No key matches {_safe(text)}. 'cadenza key list' shows the keys of an account.")
    if len(matches) > 1:
        ids = ", ".join(key.id for key in matches)
        raise ControlError(f"More than one key matches {_safe(text)}: name it by id, one of {ids}.")
    return matches[0]


def _find(tx: Transaction, text: str) -> list[KeyRecord]:
    if is_well_formed(text.encode(errors="surrogateescape")):
        key = keys.find_by_digest(tx, digest_key(text.encode()))
        return [] if key is None else [key]
    return keys.find_by_prefix_or_id(tx, text) if _is_plain(text) else []


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _view(key: KeyRecord, now_ms: int) -> KeyView:
    """A cap of an earlier month is not spent: its new month begins with the next request."""
    is_current = key.cap is not None and key.cap_month >= month_of(key.cap.period, now_ms)
    return KeyView(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        scopes=tuple(scope for scope in SCOPES if scope in key.scopes),
        state=keys.state_of(key, now_ms),
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        limits=KeyLimits(key.requests_per_second, key.burst),
        cap=key.cap,
        spent_nano=key.cap_spent_nano if is_current else 0,
        origin=key.origin,
    )


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


def _check_name(name: str) -> None:
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ControlError(f"A key's name is one line of at most {NAME_CHARS_MAX} characters.")


def _check_scopes(scopes: Sequence[str]) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            raise ControlError(f"{scope!r} is not a scope: the scopes are {', '.join(SCOPES)}.")


def _check_limits(limits: KeyLimits) -> None:
    rate, burst = limits.requests_per_second, limits.burst
    if rate is not None and not 0 < rate <= RATE_MAX:
        raise ControlError(f"A rate is above 0 and at most {RATE_MAX:,} requests a second.")
    if burst is not None and not 0 < burst <= RATE_MAX:
        raise ControlError(f"A burst is from 1 to {RATE_MAX:,} requests.")


def _check_cap(cap: Cap | None) -> None:
    if cap is None:
        return
    if not 0 <= cap.limit_nano <= AMOUNT_NANO_MAX:
        raise ControlError(f"A spend cap is from zero to {format_dollars(AMOUNT_NANO_MAX)} dollars.")
    if cap.period not in PERIODS:
        raise ControlError(f"{cap.period!r} is not the period of a cap: choose one of {', '.join(PERIODS)}.")


def _days(expires: str) -> int | None:
    if expires not in EXPIRY_DAYS:
        raise ControlError(
            f"{expires!r} is not an expiry: choose a number of days or never ({', '.join(EXPIRY_DAYS)})."
        )
    return EXPIRY_DAYS[expires]
