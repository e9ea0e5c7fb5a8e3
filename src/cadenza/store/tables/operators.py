"""What operators read about all accounts and their keys."""

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, func, select, text

from cadenza.store.schema import accounts, keys, sessions, usage
from cadenza.store.statements import Statement, total
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
    granted_nano: int
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
    return total(case((condition, 1), else_=0))


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
        total(accounts.c.balance_nano),
        total(
            case(
                (accounts.c.granted_nano > accounts.c.balance_nano, accounts.c.balance_nano),
                else_=accounts.c.granted_nano,
            )
        ),
        total(accounts.c.held_nano),
    )
)
USE_SINCE = Statement(  # completion ids begin with the time, so that this reads a range of the primary key
    select(
        usage.c.class_id,
        func.count(),
        _count_if(usage.c.status >= FAULT_STATUS),
        total(PROMPT_TOKENS),
        total(usage.c.completion_tokens),
        total(usage.c.cost_nano),
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
_NEWEST_KEYS = RECORDS.order_by(keys.c.created_at.desc(), keys.c.id).limit(bindparam("count"))
KEYS_BY = {
    name: Statement(_NEWEST_KEYS.where(keys.c[name] == bindparam("value")))
    for name in ("id", "account_id", "prefix", "digest")
}


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


async def find_keys(store: Store, column: str, value: str | bytes, count: int) -> list[KeyRecord]:
    """The newest keys with this value in a column of KEYS_BY."""
    return [read_record(row) for row in await store.rows(KEYS_BY[column], {"value": value, "count": count})]


def find_key(tx: Transaction, key_id: str) -> KeyRecord | None:
    row = tx.row(KEYS_BY["id"], {"value": key_id, "count": 1})
    return None if row is None else read_record(row)
