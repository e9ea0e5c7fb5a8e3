"""Keys: create, list, revoke. The secret leaves once, at creation; of it, the digest and 12 characters are kept."""

import secrets
from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.control.accounts import find_account
from cadenza.control.errors import ControlError
from cadenza.core.apikey import KEY_PREFIX, digest_key, display_prefix, is_well_formed, make_key
from cadenza.core.records import SCOPES
from cadenza.store import keys
from cadenza.store.database import Database
from cadenza.store.keys import KeyRecord, KeyState, NewKey

DAY_MS = 24 * 60 * 60 * 1000
EXPIRY_DAYS = {"30": 30, "90": 90, "365": 365, "never": None}
NAME_CHARS_MAX = 100
RATE_MAX = 1_000_000


class KeyView(msgspec.Struct, frozen=True):
    """A key as its owner sees it. Scopes are named in full, also where the key was created with none."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    state: KeyState
    created_at: int
    expires_at: int | None
    last_used_at: int | None


class KeyLimits(msgspec.Struct, frozen=True):
    """A rate of a key's own, or part of one; what is not given is as for every key."""

    requests_per_second: float | None = None
    burst: int | None = None


class Revocation(msgspec.Struct, frozen=True):
    """A key that is revoked now, and whether it was so before."""

    key: KeyView
    was_revoked: bool


class KeyOrder(msgspec.Struct, frozen=True):
    """What a key is to be. No scopes: all of them."""

    name: str = ""
    scopes: Sequence[str] = ()
    expires: str = "never"
    limits: KeyLimits = KeyLimits()


async def create_key(db: Database, email: str, order: KeyOrder, now_ms: int) -> tuple[str, KeyView]:
    """The secret, which cannot be had again, and its record."""
    _check_name(order.name)
    _check_scopes(order.scopes)
    _check_limits(order.limits)
    days = _days(order.expires)
    secret = make_key()
    async with db.write() as conn:
        account = await find_account(conn, email)
        key = NewKey(
            id="key_" + secrets.token_urlsafe(18),
            account_id=account.id,
            name=order.name,
            prefix=display_prefix(secret),
            scopes=frozenset(order.scopes),
            created_at=now_ms,
            expires_at=None if days is None else now_ms + days * DAY_MS,
            requests_per_second=order.limits.requests_per_second,
            burst=order.limits.burst,
        )
        await keys.insert(conn, key, digest_key(secret.encode()))
        [created] = await keys.find_by_prefix_or_id(conn, key.id)
    return secret, _view(created, now_ms)


async def list_keys(db: Database, email: str, now_ms: int) -> list[KeyView]:
    """Oldest first, the dead ones too."""
    async with db.read() as conn:
        account = await find_account(conn, email)
        return [_view(key, now_ms) for key in await keys.list_for_account(conn, account.id)]


async def revoke_key(db: Database, text: str, now_ms: int) -> Revocation:
    """By id, by the prefix on display, or by the whole key. Among several matches only the one active key counts."""
    async with db.write() as conn:
        key = await _find_one(conn, text, now_ms)
        revoked = await keys.revoke(conn, key.id, now_ms)
        return Revocation(_view(msgspec.structs.replace(key, revoked_at=now_ms), now_ms), not revoked)


async def limit_key(db: Database, text: str, limits: KeyLimits, now_ms: int) -> KeyView:
    """Give a key a rate of its own, or take it away; it counts from the next request on."""
    _check_limits(limits)
    async with db.write() as conn:
        key = await _find_one(conn, text, now_ms)
        await keys.set_rate(conn, key.id, limits.requests_per_second, limits.burst)
        return _view(key, now_ms)


async def _find_one(conn: AsyncConnection, text: str, now_ms: int) -> KeyRecord:
    found = await _find(conn, text)
    matches = [key for key in found if keys.state_of(key, now_ms) == "active"] or found
    if not matches:
        raise ControlError(f"No key matches {_safe(text)}. 'cadenza key list' shows the keys of an account.")
    if len(matches) > 1:
        ids = ", ".join(key.id for key in matches)
        raise ControlError(f"More than one key matches {_safe(text)}: name it by id, one of {ids}.")
    return matches[0]


async def _find(conn: AsyncConnection, text: str) -> list[KeyRecord]:
    if is_well_formed(text.encode(errors="surrogateescape")):
        key = await keys.find_by_digest(conn, digest_key(text.encode()))
        return [] if key is None else [key]
    return await keys.find_by_prefix_or_id(conn, text) if text.isascii() and text.isprintable() else []


def _view(key: KeyRecord, now_ms: int) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        scopes=tuple(scope for scope in SCOPES if scope in key.scopes),
        state=keys.state_of(key, now_ms),
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
    )


def _safe(text: str) -> str:
    """What may be repeated of what was typed: of something like a key, no more than its prefix."""
    return f"{display_prefix(text)}…" if text.startswith(KEY_PREFIX) else repr(text)


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


def _days(expires: str) -> int | None:
    if expires not in EXPIRY_DAYS:
        raise ControlError(f"{expires!r} is not an expiry: choose {', '.join(EXPIRY_DAYS)} (days, or never).")
    return EXPIRY_DAYS[expires]
