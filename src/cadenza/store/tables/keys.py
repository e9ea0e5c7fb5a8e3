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

from cadenza.core.public import Public
from cadenza.core.records import SCOPES, Period, Principal
from cadenza.core.spans import month_of
from cadenza.store.schema import accounts, caps, keys
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction, change_row
from cadenza.store.tables import epochs
from cadenza.store.tables.accounts import lock_account

KeyState = Literal["active", "revoked", "expired"]
KeyOrigin = Literal["owner", "web"]
WEB_NAME = "Web chat"
WEB_PREFIX = "web-chat----"


class NewKey(msgspec.Struct, frozen=True):
    """A row to be inserted. No scopes means all of them, including those of later releases."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: frozenset[str]
    created_at: int
    expires_at: int | None
    requests_per_second: float | None = None  # None: the default rate
    burst: int | None = None
    origin: KeyOrigin = "owner"
    token: str | None = None  # the first characters of the access token that created it


class KeyCap(Public, msgspec.Struct, frozen=True):
    """A spend cap, and what was spent in the current period."""

    limit_nano: int
    period: Period
    spent_nano: int


class Key(Public, msgspec.Struct, frozen=True, kw_only=True):
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
    requests_per_second: float | None  # None: the default rate
    burst: int | None
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


IS_WEB = keys.c.origin == literal_column("'web'")
READ = ("id", "account_id", "name", "prefix", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at")
KEYS = (
    select(
        *(keys.c[name] for name in (*READ, "requests_per_second", "burst", "origin", "token")),
        *(accounts.c.email, caps.c.limit_nano, caps.c.period, caps.c.month, caps.c.spent_nano),
    )
    .join_from(keys, accounts)
    .outerjoin(caps, caps.c.key_id == keys.c.id)
)
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
FOUND = select(
    keys.c.id,
    keys.c.account_id,
    keys.c.scopes,
    accounts.c.preferred_class,
    keys.c.requests_per_second,
    keys.c.burst,
    accounts.c.balance_nano,
    keys.c.is_capped,
    accounts.c.uses_search,
    and_(accounts.c.uses_memory, accounts.c.note_count > literal_column("0")),
    accounts.c.shows_cost,
    keys.c.expires_at,
    func.coalesce(keys.c.revoked_at, accounts.c.suspended_at),
    accounts.c.suspended_at,
    epochs.number_of(epochs.CLASSES),
).join_from(keys, accounts)
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


@cache
def scopes_of(written: str) -> frozenset[str]:
    """Read the scopes of a row. An empty text means all of them; only a few texts occur."""
    return frozenset(written.split() or SCOPES)


async def look_up(store: Store, digest: bytes) -> FoundKey | None:
    row = await store.row(LOOK_UP, {"digest": digest})
    return None if row is None else _found_key(row)


async def look_up_many(store: Store, digests: Sequence[bytes]) -> FoundKeys:
    """The keys among these digests. Postgres reads them all, and the epoch, with one query in one snapshot."""
    rows = await store.rows(LOOK_UP_MANY, {"digests": digests})
    return FoundKeys(rows[0][-1] if rows else None, {bytes(row[-2]): _found_key(row[:-2]) for row in rows})


def _found_key(row: Row) -> FoundKey:
    key_id, account_id, scopes, preferred_class, per_s, burst, balance_nano, *switches = row[:11]
    usual = (key_id, account_id, scopes_of(scopes), preferred_class, per_s, burst, balance_nano)
    return FoundKey(Principal(*usual, *map(bool, switches)), *row[11:])


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
    key_id, account_id, name, prefix, scopes, created_at, expires_at, revoked_at, last_used_at, *rest = row
    per_second, burst, origin, token, email, limit_nano, period, month, spent_nano = rest
    cap = None
    if limit_nano is not None:
        cap = KeyCap(limit_nano, period, spent_nano if month >= month_of(period, now_ms) else 0)
    return OwnedKey(
        id=key_id,
        account_id=account_id,
        email=email,
        name=name,
        prefix=prefix,
        scopes=tuple(scope for scope in SCOPES if scope in scopes_of(scopes)),
        state=state_of(revoked_at, expires_at, now_ms),
        created_at=created_at,
        expires_at=expires_at,
        last_used_at=last_used_at,
        requests_per_second=per_second,
        burst=burst,
        cap=cap,
        created_by_token=token,
        is_web=origin == "web",
    )
