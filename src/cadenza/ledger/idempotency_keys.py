"""The rows of idempotency keys: which request of an account used a key, for 24 hours.

A key is written with the hold of its request, in the same transaction, and deleted if the request is not charged.
"""

from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update

from cadenza.ledger.rows import change_each
from cadenza.ledger.rules import IDEMPOTENCY_MS, Changes, Hold, Repeated
from cadenza.store.schema import idempotency
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction

FORGOTTEN_MAX = 200  # in a transaction
ADD_KEY = Statement(insert(idempotency), *idempotency.c.keys())
_OF_KEY = (idempotency.c.account_id == bindparam("account"), idempotency.c.digest == bindparam("key"))
READ_KEY = Statement(
    select(idempotency.c.completion_id, idempotency.c.request_id, idempotency.c.created_at).where(*_OF_KEY)
)
FORGET_KEY = Statement(delete(idempotency).where(*_OF_KEY))
_OF_REQUEST = (*_OF_KEY, idempotency.c.completion_id == bindparam("completion"))
FREE_KEY = Statement(delete(idempotency).where(*_OF_REQUEST))
KEEP_KEY = Statement(update(idempotency).where(*_OF_REQUEST).values(process=None))
OLD_KEYS = Statement(
    select(idempotency.c.account_id, idempotency.c.digest)
    .where(idempotency.c.created_at < bindparam("before"))
    .limit(bindparam("count"))
)


def read_use(tx: Transaction, hold: Hold) -> Repeated | None:
    """The request that has used the key of this one."""
    row = tx.row(READ_KEY, _key_of(hold))
    return _key_use(row, hold.started_at) if row else None


def forget_old_keys(tx: Transaction, now_ms: int) -> int:
    """Forget some idempotency keys that are too old. Return how many: call it until it is 0."""
    old = tx.rows(OLD_KEYS, {"before": now_ms - IDEMPOTENCY_MS, "count": FORGOTTEN_MAX})
    if old:
        tx.change_each(FORGET_KEY, [{"account": account_id, "key": digest} for account_id, digest in old])
    return len(old)


async def find_repeated(store: Store, account_id: str, digest: bytes, now_ms: int) -> Repeated | None:
    """The request that used an idempotency key: a look before any work is done. The hold asks again, and decides."""
    row = await store.row(READ_KEY, {"account": account_id, "key": digest})
    used = _key_use(row, now_ms) if row else None
    return None if used is None or used.is_open else used


def _key_use(row: Row, now_ms: int) -> Repeated:
    """A key may be used again after 24 hours. That of a request that was not charged is deleted at its end."""
    completion_id, request_id, created_at = row
    return Repeated(completion_id, request_id, is_open=created_at <= now_ms - IDEMPOTENCY_MS)


def write_keys(tx: Transaction, process: str, changes: Changes) -> None:
    change_each(tx, KEEP_KEY, [_key_of(hold) for hold in changes.kept_keys])
    change_each(tx, FREE_KEY, [_key_of(hold) for hold in changes.freed_keys])
    change_each(tx, FORGET_KEY, [_key_of(hold) for hold in changes.new_keys])
    new = [
        {
            "account_id": hold.account_id,
            "digest": hold.idempotency_digest,
            "completion_id": hold.completion_id,
            "request_id": hold.request_id,
            "created_at": hold.started_at,
            "process": process,
        }
        for hold in changes.new_keys
    ]
    change_each(tx, ADD_KEY, new)


def _key_of(hold: Hold) -> dict[str, Any]:
    return {"account": hold.account_id, "key": hold.idempotency_digest, "completion": hold.completion_id}
