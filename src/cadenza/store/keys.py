"""Keys: stored by digest, looked up in one indexed select, revoked once and for good.

Empty scopes in the table mean all of them; a record always names what its key may do.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Row, bindparam, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.core.records import SCOPES
from cadenza.store.database import Database
from cadenza.store.schema import accounts, epochs, keys
from cadenza.store.statements import Statement

KeyState = Literal["active", "revoked", "expired"]


class NewKey(msgspec.Struct, frozen=True):
    """A key as it is created. No scopes: all of them, those of later releases too."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: frozenset[str]
    created_at: int
    expires_at: int | None
    requests_per_second: float | None = None
    burst: int | None = None


class KeyRecord(msgspec.Struct, frozen=True):
    """A key, live or dead, and what its account prefers: all that authentication needs."""

    id: str
    account_id: str
    name: str
    prefix: str
    scopes: frozenset[str]
    preferred_class: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    requests_per_second: float | None  # where it has a rate of its own
    burst: int | None


class FoundKey(NamedTuple):
    """What a request must know of its key, and in the same breath the epoch of the classes."""

    id: str
    account_id: str
    scopes: str
    preferred_class: str
    expires_at: int | None
    revoked_at: int | None
    requests_per_second: float | None
    burst: int | None
    classes_epoch: int


RECORDS = select(
    keys.c.id,
    keys.c.account_id,
    keys.c.name,
    keys.c.prefix,
    keys.c.scopes,
    accounts.c.preferred_class,
    keys.c.created_at,
    keys.c.expires_at,
    keys.c.revoked_at,
    keys.c.last_used_at,
    keys.c.requests_per_second,
    keys.c.burst,
).join_from(keys, accounts)
BY_DIGEST = RECORDS.where(keys.c.digest == bindparam("digest"))
CLASSES_EPOCH = select(epochs.c.number).where(epochs.c.name == literal_column("'classes'")).scalar_subquery()
LOOK_UP = Statement(
    select(
        *(accounts.c[name] if name == "preferred_class" else keys.c[name] for name in FoundKey._fields[:-1]),
        CLASSES_EPOCH.label("classes_epoch"),
    )
    .join_from(keys, accounts)
    .where(keys.c.digest == bindparam("digest"))
)
TOUCH = Statement(
    keys.update()
    .where(
        keys.c.id == bindparam("key_id"),
        or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < bindparam("used_at")),
    )
    .values(last_used_at=bindparam("used_at"))
)
BRIEF_USES = 100
OLDEST_FIRST = (keys.c.created_at, keys.c.id)


def state_of(key: KeyRecord | FoundKey, now_ms: int) -> KeyState:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and now_ms >= key.expires_at:
        return "expired"
    return "active"


async def insert(conn: AsyncConnection, key: NewKey, digest: bytes) -> None:
    scopes = " ".join(scope for scope in SCOPES if scope in key.scopes)
    given = {name: value for name, value in msgspec.structs.asdict(key).items() if value is not None}
    await conn.execute(keys.insert().values({**given, "scopes": scopes, "digest": digest}))


async def find_by_digest(conn: AsyncConnection, digest: bytes) -> KeyRecord | None:
    row = (await conn.execute(BY_DIGEST, {"digest": digest})).one_or_none()
    return None if row is None else _record(row)


async def look_up(db: Database, digest: bytes) -> FoundKey | None:
    row = await db.row(LOOK_UP, {"digest": digest})
    return None if row is None else FoundKey._make(row)


@cache
def scopes_of(written: str) -> frozenset[str]:
    """None written are all of them. There are but a few sets."""
    return frozenset(written.split() or SCOPES)


async def find_by_prefix_or_id(conn: AsyncConnection, text: str) -> list[KeyRecord]:
    found = RECORDS.where(or_(keys.c.id == text, keys.c.prefix == text)).order_by(*OLDEST_FIRST)
    return [_record(row) for row in await conn.execute(found)]


async def list_for_account(conn: AsyncConnection, account_id: str) -> list[KeyRecord]:
    owned = RECORDS.where(keys.c.account_id == account_id).order_by(*OLDEST_FIRST)
    return [_record(row) for row in await conn.execute(owned)]


async def revoke(conn: AsyncConnection, key_id: str, now_ms: int) -> bool:
    """Whether this call revoked it: the first time stands."""
    still_live = keys.update().where(keys.c.id == key_id, keys.c.revoked_at.is_(None))
    return (await conn.execute(still_live.values(revoked_at=now_ms))).rowcount == 1


async def set_rate(conn: AsyncConnection, key_id: str, requests_per_second: float | None, burst: int | None) -> None:
    limits = {"requests_per_second": requests_per_second, "burst": burst}
    await conn.execute(keys.update().where(keys.c.id == key_id).values(limits))


async def touch(db: Database, last_used_ms: Mapping[str, int]) -> None:
    """Note the last use of each key; time never moves backwards. In the order of ids, so that no two deadlock."""
    uses = [{"key_id": key_id, "used_at": used} for key_id, used in sorted(last_used_ms.items())]
    if uses:
        await db.transact(lambda connection: TOUCH.change_each(connection, uses), is_brief=len(uses) < BRIEF_USES)


def _record(row: Row[*tuple[Any, ...]]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        account_id=row.account_id,
        name=row.name,
        prefix=row.prefix,
        scopes=scopes_of(row.scopes),
        preferred_class=row.preferred_class,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        requests_per_second=row.requests_per_second,
        burst=row.burst,
    )
