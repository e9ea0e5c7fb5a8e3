"""What operators read about all accounts and their keys."""

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, func, select, text

from cadenza.store.schema import accounts, keys, sessions, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.accounts import COLUMNS, Account, read_account
from cadenza.store.tables.keys import RECORDS, KeyRecord, read_record
from cadenza.store.tables.usage import PROMPT_TOKENS

ESCAPE = "\\"
FAULT_STATUS = 500  # and above: the service or the upstream failed


class Totals(msgspec.Struct, frozen=True):
    """All accounts together."""

    accounts: int
    operators: int
    suspended: int
    balance_nano: int
    held_nano: int


class ClassUse(msgspec.Struct, frozen=True):
    """What was used of one class in a span of time."""

    class_id: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost_nano: int


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)


SEARCH = Statement(
    select(*COLUMNS)
    .where(accounts.c.email > bindparam("after"), accounts.c.email.like(bindparam("pattern"), escape=ESCAPE))
    .order_by(accounts.c.email)
    .limit(bindparam("count"))
)
TOTALS = Statement(
    select(
        func.count(),
        _count_if(accounts.c.is_operator),
        _count_if(accounts.c.suspended_at.is_not(None)),
        _sum(accounts.c.balance_nano),
        _sum(accounts.c.held_nano),
    )
)
USE_SINCE = Statement(  # completion ids begin with the time, so that this reads a range of the primary key
    select(
        usage.c.class_id,
        func.count(),
        _count_if(usage.c.status >= FAULT_STATUS),
        _sum(PROMPT_TOKENS),
        _sum(usage.c.completion_tokens),
        _sum(usage.c.cost_nano),
    )
    .where(usage.c.completion_id >= bindparam("first"), usage.c.started_at >= bindparam("start"))
    .group_by(text("1"))
    .order_by(text("1"))
)
SESSIONS = Statement(
    select(func.count())
    .select_from(sessions)
    .where(sessions.c.account_id == bindparam("account"), sessions.c.expires_at > bindparam("now"))
)
_KEYS = RECORDS.order_by(keys.c.created_at.desc(), keys.c.id)
_SOME_KEYS = _KEYS.limit(bindparam("count"))
KEYS_OF_ACCOUNT = Statement(_SOME_KEYS.where(keys.c.account_id == bindparam("account")))
KEYS_BY_PREFIX = Statement(_SOME_KEYS.where(keys.c.prefix == bindparam("text")))
KEY_BY_ID = Statement(_KEYS.where(keys.c.id == bindparam("text")))
KEY_BY_DIGEST = Statement(_KEYS.where(keys.c.digest == bindparam("digest")))


async def search(store: Store, part: str, after: str, count: int) -> list[Account]:
    """Accounts whose address contains `part`, ordered by address, from the one after `after` on."""
    escaped = "".join(ESCAPE + letter if letter in f"%_{ESCAPE}" else letter for letter in part)
    values = {"after": after, "pattern": f"%{escaped}%", "count": count}
    return [read_account(row) for row in await store.rows(SEARCH, values)]


async def totals(store: Store) -> Totals:
    [row] = await store.rows(TOTALS, {})
    return Totals(*map(int, row))


async def use_since(store: Store, first_id: str, start_ms: int) -> list[ClassUse]:
    """What was used since a time, by class. `first_id` is the lowest completion id of that time."""
    rows = await store.rows(USE_SINCE, {"first": first_id, "start": start_ms})
    return [ClassUse(class_id, *map(int, counted)) for class_id, *counted in rows]


async def count_sessions(store: Store, account_id: str, now_ms: int) -> int:
    row = await store.row(SESSIONS, {"account": account_id, "now": now_ms})
    return int(row[0]) if row else 0


async def keys_of_account(store: Store, account_id: str, count: int) -> list[KeyRecord]:
    """The newest keys of an account."""
    return [read_record(row) for row in await store.rows(KEYS_OF_ACCOUNT, {"account": account_id, "count": count})]


async def keys_by_prefix(store: Store, prefix: str, count: int) -> list[KeyRecord]:
    return [read_record(row) for row in await store.rows(KEYS_BY_PREFIX, {"text": prefix, "count": count})]


async def key_by_id(store: Store, key_id: str) -> list[KeyRecord]:
    return [read_record(row) for row in await store.rows(KEY_BY_ID, {"text": key_id})]


def find_key(tx: Transaction, key_id: str) -> KeyRecord | None:
    row = tx.row(KEY_BY_ID, {"text": key_id})
    return None if row is None else read_record(row)


async def key_by_digest(store: Store, digest: bytes) -> list[KeyRecord]:
    return [read_record(row) for row in await store.rows(KEY_BY_DIGEST, {"digest": digest})]
