"""Keys: stored by digest, found with one indexed read. Revoking is final. `changes.make_change` runs their changes.

Empty scopes in the table mean all scopes; a record always names the scopes. The web application has a key of its own
for each account that uses it: nobody knows it, and it is not found by prefix or id.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import (
    ARRAY,
    LargeBinary,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from cadenza.core.orders import copied
from cadenza.core.public import Public
from cadenza.core.records import SCOPES, KeyLimits, Period, Principal
from cadenza.core.spans import month_of
from cadenza.store.rows import Rows
from cadenza.store.schema import accounts, caps, keys
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction, change_row
from cadenza.store.tables import epochs
from cadenza.store.tables.accounts import lock_account

KeyState = Literal["active", "revoked", "expired"]
KeyOrigin = Literal["owner", "web"]
WEB_NAME = "Web chat"
WEB_PREFIX = "web-chat----"


class NewKey(KeyLimits, frozen=True):
    """A row to be inserted. No scopes means all of them, including those of later releases."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: frozenset[str]
    created_at: int
    expires_at: int | None
    origin: KeyOrigin = "owner"
    token: str | None = None  # the first characters of the access token that created it


class KeyRow(NewKey, frozen=True, kw_only=True):
    """A row, with the address of its account and its spend cap."""

    revoked_at: int | None
    last_used_at: int | None
    email: str
    cap_nano: int | None
    cap_period: Period
    cap_month: int
    cap_spent_nano: int


class KeyCap(Public, msgspec.Struct, frozen=True):
    """A spend cap, and what was spent in the current period."""

    limit_nano: int
    period: Period
    spent_nano: int


class Key(Public, KeyLimits, frozen=True, kw_only=True):
    """A key without its secret."""

    object: Literal["key"] = "key"
    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]  # never none
    state: KeyState
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    cap: KeyCap | None
    created_by_token: str | None  # its first characters


class OwnedKey(Key, frozen=True, kw_only=True):
    """A key of any account. That of the web chat cannot be revoked."""

    account_id: str
    email: str
    is_web: bool


class FoundKey(NamedTuple):
    """What a request needs to know about its key and its account, and the epoch of the classes, in one read.

    A found key may be cached. Its balance can then only be too high, because added credit clears the caches.
    """

    principal: Principal
    expires_at: int | None
    revoked_at: int | None  # or when its account was suspended
    suspended_at: int | None
    classes_epoch: int


class FoundKeys(NamedTuple):
    """The keys that one query found, and the epoch of changes that it saw; None if it found no key."""

    epoch: int | None
    by_digest: dict[bytes, FoundKey]


@cache
def scopes_of(written: str) -> frozenset[str]:
    """Read the scopes of a row. An empty text means all of them; only a few texts occur."""
    return frozenset(written.split() or SCOPES)


IS_WEB = keys.c.origin == literal_column("'web'")
ROWS = Rows(
    KeyRow,
    keys,
    {"scopes": scopes_of},
    email=accounts.c.email,
    cap_nano=caps.c.limit_nano,
    cap_period=caps.c.period,
    cap_month=caps.c.month,
    cap_spent_nano=caps.c.spent_nano,
)
KEYS = select(*ROWS.columns).join_from(keys, accounts).outerjoin(caps, caps.c.key_id == keys.c.id)
NEWEST_FIRST = (keys.c.created_at.desc(), keys.c.id.desc())
BY = {
    name: Statement(KEYS.where(keys.c[name] == bindparam("value")).order_by(*NEWEST_FIRST).limit(bindparam("count")))
    for name in ("id", "account_id", "prefix", "digest")
}
IS_ACTIVE = (keys.c.revoked_at.is_(None), or_(keys.c.expires_at.is_(None), keys.c.expires_at > bindparam("now")))
OF_OWNER = (keys.c.account_id == bindparam("account"), ~IS_WEB)
PLACE = Statement(select(keys.c.created_at, keys.c.id).where(keys.c.id == bindparam("key"), *OF_OWNER))
OF_PAGE = (
    KEYS.where(
        *OF_OWNER,
        or_(
            keys.c.created_at < bindparam("created"),
            and_(keys.c.created_at == bindparam("created"), keys.c.id < bindparam("key")),
        ),
    )
    .order_by(*NEWEST_FIRST)
    .limit(bindparam("count"))
)
PAGE = Statement(OF_PAGE)
ACTIVE_PAGE = Statement(OF_PAGE.where(*IS_ACTIVE))
COUNT_ACTIVE = Statement(select(func.count()).where(*OF_OWNER, *IS_ACTIVE))
COUNT_NEW = Statement(select(func.count()).where(*OF_OWNER, keys.c.created_at > bindparam("since")))
NEWEST = (2**62, "")
OF_WEB = (keys.c.account_id == bindparam("account"), IS_WEB)
WEB_DIGEST = Statement(select(keys.c.digest).where(*OF_WEB))
PRINCIPALS = Rows(
    Principal,
    keys,
    {"scopes": scopes_of},
    key_id=keys.c.id,
    preferred_class=accounts.c.preferred_class,
    balance_nano=accounts.c.balance_nano,
    may_search=accounts.c.uses_search,
    has_notes=and_(accounts.c.uses_memory, accounts.c.note_count > literal_column("0")),
    shows_cost=accounts.c.shows_cost,
)
FOUND = select(
    keys.c.expires_at,
    func.coalesce(keys.c.revoked_at, accounts.c.suspended_at),
    accounts.c.suspended_at,
    epochs.number_of(epochs.CLASSES),
    *PRINCIPALS.columns,
).join_from(keys, accounts)
FOUND_BESIDES = len(FoundKey._fields) - 1
LOOK_UP = Statement(FOUND.where(keys.c.digest == bindparam("digest")))
LOOK_UP_MANY = Statement(  # for Postgres only
    FOUND.add_columns(keys.c.digest, epochs.number_of(epochs.CHANGES).label("changes_epoch")).where(
        keys.c.digest == func.any(bindparam("digests", type_=ARRAY(LargeBinary)))
    )
)
INSERT = Statement(insert(keys), *NewKey.__struct_fields__, "digest")
REVOKE = Statement(
    update(keys).where(keys.c.id == bindparam("key"), keys.c.revoked_at.is_(None)).values(revoked_at=bindparam("now"))
)
TOUCH = Statement(
    update(keys)
    .where(
        keys.c.id == bindparam("key"),
        or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < bindparam("used")),
    )
    .values(last_used_at=bindparam("used"))
)
BRIEF_USES = 100
COUNT_MAX = 2**31


def state_of(revoked_at: int | None, expires_at: int | None, now_ms: int) -> KeyState:
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at is not None and now_ms >= expires_at else "active"


async def look_up(store: Store, digest: bytes) -> FoundKey | None:
    row = await store.row(LOOK_UP, {"digest": digest})
    return None if row is None else _found_key(row)


async def look_up_many(store: Store, digests: Sequence[bytes]) -> FoundKeys:
    """The keys among these digests. Postgres reads them all, and the epoch, with one query in one snapshot."""
    rows = await store.rows(LOOK_UP_MANY, {"digests": digests})
    return FoundKeys(rows[0][-1] if rows else None, {bytes(row[-2]): _found_key(row[:-2]) for row in rows})


def _found_key(row: Row) -> FoundKey:
    return FoundKey(PRINCIPALS.read(row[FOUND_BESIDES:]), *row[:FOUND_BESIDES])


async def find_web(store: Store, account_id: str) -> bytes | None:
    """The digest of the web application's key for an account; None before its first chat."""
    row = await store.row(WEB_DIGEST, {"account": account_id})
    return None if row is None else bytes(row[0])


async def list_newest(store: Store, column: str, value: str | bytes, now_ms: int, count: int) -> list[OwnedKey]:
    """The newest keys with this value in a column of BY, with those of the web application. Ids have an index."""
    read = store.rows if column == "id" else store.report
    return [read_key(row, now_ms) for row in await read(BY[column], {"value": value, "count": count})]


async def list_page(
    store: Store, account_id: str, now_ms: int, before: str = "", count: int = COUNT_MAX, *, is_active: bool = False
) -> list[OwnedKey]:
    """Keys of an owner, newest first, from the key after `before` on; all, or those that are active."""
    of_key = {"account": account_id, "key": before}
    place = await store.row(PLACE, of_key) if before.isascii() and before.isprintable() and before else NEWEST
    if place is None:
        return []
    created_at, key_id = place
    values = {"account": account_id, "created": created_at, "key": key_id, "count": count, "now": now_ms}
    return [read_key(row, now_ms) for row in await store.rows(ACTIVE_PAGE if is_active else PAGE, values)]


async def touch(store: Store, last_used_ms: Mapping[str, int]) -> None:
    """Write when each key was last used; times only move forward. Ordered by id, so that no two writers deadlock."""
    uses = [{"key": key_id, "used": used} for key_id, used in sorted(last_used_ms.items())]
    if uses:
        await store.transact(lambda tx: tx.change_each(TOUCH, uses), is_brief=len(uses) < BRIEF_USES)


def add(tx: Transaction, key: NewKey, digest: bytes) -> None:
    scopes = " ".join(scope for scope in SCOPES if scope in key.scopes)
    tx.change(INSERT, {**msgspec.structs.asdict(key), "scopes": scopes, "digest": digest})


def web_key(tx: Transaction, account_id: str, now_ms: int) -> bytes:
    """Find or create the key of the web application for an account, and return its digest.

    It has every scope. The digest is of random bytes that are not kept, so no request can present the key.
    """
    lock_account(tx, account_id)
    if found := tx.row(WEB_DIGEST, {"account": account_id}):
        return bytes(found[0])
    digest, key_id = secrets.token_bytes(32), "key_" + secrets.token_urlsafe(18)
    add(tx, NewKey(key_id, account_id, WEB_NAME, WEB_PREFIX, frozenset(), now_ms, None, origin="web"), digest)
    return digest


def find(tx: Transaction, column: str, value: str | bytes, now_ms: int) -> list[OwnedKey]:
    """The newest keys with this value in a column of BY, with those of the web application."""
    return [read_key(row, now_ms) for row in tx.rows(BY[column], {"value": value, "count": COUNT_MAX})]


def count(tx: Transaction, account_id: str, now_ms: int, since_ms: int) -> tuple[int, int]:
    """How many keys of an owner are active, and how many were created since then."""
    active = tx.row(COUNT_ACTIVE, {"account": account_id, "now": now_ms})
    new = tx.row(COUNT_NEW, {"account": account_id, "since": since_ms})
    assert active
    assert new
    return int(active[0]), int(new[0])


def revoke(tx: Transaction, key_id: str, now_ms: int) -> bool:
    """Revoke a key. False if it is already revoked: the time of the first revocation stays."""
    return tx.change(REVOKE, {"key": key_id, "now": now_ms}) == 1


def change(tx: Transaction, key_id: str, **values: str | float | None) -> None:
    """Set columns of a key."""
    change_row(tx, keys, key_id, **values)


def read_key(row: Row, now_ms: int) -> OwnedKey:
    """A cap of an earlier month is not spent: its new month begins with the next request."""
    found, cap = ROWS.read(row), None
    if found.cap_nano is not None:
        is_current = found.cap_month >= month_of(found.cap_period, now_ms)
        cap = KeyCap(found.cap_nano, found.cap_period, found.cap_spent_nano if is_current else 0)
    return copied(
        OwnedKey,
        found,
        scopes=tuple(scope for scope in SCOPES if scope in found.scopes),
        state=state_of(found.revoked_at, found.expires_at, now_ms),
        cap=cap,
        created_by_token=found.token,
        is_web=found.origin == "web",
    )
