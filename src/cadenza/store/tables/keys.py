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

from cadenza.core.records import SCOPES, Cap, Principal
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
    """A key to be created. No scopes means all of them, including those of later releases."""

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


class KeyRecord(NewKey, frozen=True, kw_only=True):
    """A key, active or not, its spend cap, and the address and preferred class of its account."""

    preferred_class: str
    revoked_at: int | None
    last_used_at: int | None
    email: str = ""
    cap: Cap | None = None
    cap_month: int = 0
    cap_spent_nano: int = 0  # in that month, or in all time if it is 0


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


RECORD_FIELDS = KeyRecord.__struct_fields__[:-3]
CAP_COLUMNS = (caps.c.limit_nano, caps.c.period, caps.c.month, caps.c.spent_nano)
IS_WEB = keys.c.origin == literal_column("'web'")
OLDEST_FIRST = (keys.c.created_at, keys.c.id)
RECORDS = (
    select(
        *(accounts.c[name] if name in {"preferred_class", "email"} else keys.c[name] for name in RECORD_FIELDS),
        *CAP_COLUMNS,
    )
    .join_from(keys, accounts)
    .outerjoin(caps, caps.c.key_id == keys.c.id)
)
BY_DIGEST = Statement(RECORDS.where(keys.c.digest == bindparam("digest")))
BY_PREFIX_OR_ID = Statement(
    RECORDS.where(or_(keys.c.id == bindparam("text"), keys.c.prefix == bindparam("text")), ~IS_WEB).order_by(
        *OLDEST_FIRST
    )
)
OF_ACCOUNT = Statement(RECORDS.where(keys.c.account_id == bindparam("account")).order_by(*OLDEST_FIRST))
IS_ACTIVE = (keys.c.revoked_at.is_(None), or_(keys.c.expires_at.is_(None), keys.c.expires_at > bindparam("now")))
OF_OWNER = (keys.c.account_id == bindparam("account"), ~IS_WEB)
OWN = Statement(RECORDS.where(keys.c.id == bindparam("key"), *OF_OWNER))
PLACE = Statement(select(keys.c.created_at, keys.c.id).where(keys.c.id == bindparam("key"), *OF_OWNER))
OF_PAGE = (
    RECORDS.where(
        *OF_OWNER,
        or_(
            keys.c.created_at < bindparam("created"),
            and_(keys.c.created_at == bindparam("created"), keys.c.id < bindparam("key")),
        ),
    )
    .order_by(keys.c.created_at.desc(), keys.c.id.desc())
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


def state_of(key: KeyRecord | FoundKey, now_ms: int) -> KeyState:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and now_ms >= key.expires_at:
        return "expired"
    return "active"


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


async def list_for_account(store: Store, account_id: str, *, with_web: bool = False) -> list[KeyRecord]:
    """The keys of an account. The key of the web application is left out, unless it is asked for."""
    found = [read_record(row) for row in await store.rows(OF_ACCOUNT, {"account": account_id})]
    return [key for key in found if with_web or key.origin != "web"]


async def get_own(store: Store, account_id: str, key_id: str) -> KeyRecord | None:
    """A key of an owner by its id."""
    if not key_id.isascii() or not key_id.isprintable():
        return None
    row = await store.row(OWN, {"account": account_id, "key": key_id})
    return None if row is None else read_record(row)


async def list_page(store: Store, account_id: str, before: str, count: int, active_ms: int | None) -> list[KeyRecord]:
    """Keys of an owner, newest first, from the key after `before` on; with a time, those that are active then."""
    of_key = {"account": account_id, "key": before}
    place = await store.row(PLACE, of_key) if before.isascii() and before.isprintable() and before else NEWEST
    if place is None:
        return []
    created_at, key_id = place
    values = {"account": account_id, "created": created_at, "key": key_id, "count": count, "now": active_ms}
    return [read_record(row) for row in await store.rows(PAGE if active_ms is None else ACTIVE_PAGE, values)]


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


def find_by_digest(tx: Transaction, digest: bytes) -> KeyRecord | None:
    row = tx.row(BY_DIGEST, {"digest": digest})
    return None if row is None else read_record(row)


def find_by_prefix_or_id(tx: Transaction, text: str) -> list[KeyRecord]:
    return [read_record(row) for row in tx.rows(BY_PREFIX_OR_ID, {"text": text})]


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


def read_record(row: Row) -> KeyRecord:
    *values, limit_nano, period, month, spent_nano = row
    record = dict(zip(RECORD_FIELDS, values, strict=True))
    record["scopes"] = scopes_of(record["scopes"])
    if limit_nano is None:
        return KeyRecord(**record)
    return KeyRecord(**record, cap=Cap(limit_nano, period), cap_month=month, cap_spent_nano=spent_nano)
