"""Erases the personal data of an account irreversibly. Its row stays, without an address, for its entries and usage.

`begin` is one short transaction: from then on the account cannot be used, and has no address. What may be much, a row
for each request or event, is erased in batches. Meanwhile `erasing_email` has the former address: the triggers of the
audit log allow its change only then, and whoever comes next finds by it what is left.
"""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import (
    BindParameter,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from cadenza.store.columns import ABOUT, MEANING, REPLACED, OfService, Removed, WhenErased
from cadenza.store.schema import ERASED_PREFIX, accounts, audit_events, keys, links, metadata, usage
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Store, Transaction, change_row
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.batches import BatchedChange

BATCH_ROWS = 200  # some milliseconds of database time
PAUSE_S = 0.02  # between batches: requests go first
ERASED = "account.erase"  # the event of the audit log
_ACCOUNT: BindParameter[str] = bindparam("account")
_IS_OWN_ADDRESS = and_(
    audit_events.c.actor.contains("@"),
    ~exists().where(accounts.c.email == audit_events.c.actor, accounts.c.id != _ACCOUNT),
)
REMOVE_LINKS = Statement(delete(links).where(links.c.email == bindparam("address")))


def _removed(how: Removed) -> list[Table]:
    """Tables whose rows of an account are deleted."""
    about = {table: table.info[ABOUT] for table in metadata.tables.values()}
    return [table for table, one in about.items() if not isinstance(one, OfService) and one.removed == how]


def _erased(table: Table, **replaced: object) -> dict[str, object]:
    """The values of an erased row: those of the schema, and those that it leaves to this module."""
    found = {column.name: column.info[MEANING].erased for column in table.c if MEANING in column.info}
    assert replaced.keys() == {name for name, value in found.items() if value is REPLACED}
    return {name: value for name, value in found.items() if not isinstance(value, WhenErased)} | replaced


REMOVE_FEW = [  # limits of the product bound how many an account has
    Statement(delete(table).where(table.c.account_id == _ACCOUNT)) for table in _removed("at once")
]


def _removal(table: Table) -> BatchedChange:
    return BatchedChange.of(table, [*table.primary_key][-1].name, delete(table), table.c.account_id == _ACCOUNT)


_OWN_EVENT = and_(audit_events.c.account_id == _ACCOUNT, audit_events.c.event != literal_column(f"'{ERASED}'"))
STEPS = (
    BatchedChange.of(
        keys,
        "id",
        update(keys).values(
            _erased(
                keys,
                digest=bindparam("random_digest"),
                revoked_at=func.coalesce(keys.c.revoked_at, bindparam("now")),
            )
        ),
        keys.c.account_id == _ACCOUNT,
        keys.c.prefix != literal_column(f"'{ERASED_PREFIX}'"),
    ),
    *(_removal(table) for table in _removed("in batches")),
    BatchedChange.of(
        audit_events,
        "id",
        update(audit_events).values(
            _erased(audit_events, actor=case((_IS_OWN_ADDRESS, audit_events.c.account_id), else_=audit_events.c.actor))
        ),
        _OWN_EVENT,
        or_(audit_events.c.detail != literal_column("''"), _IS_OWN_ADDRESS),
    ),
    BatchedChange.of(  # also of others; before its address was free for another account
        audit_events,
        "id",
        update(audit_events).values(actor=_ACCOUNT),
        audit_events.c.actor == bindparam("address"),
        audit_events.c.at <= bindparam("now"),
    ),
    BatchedChange.of(
        usage,
        "started_at",
        update(usage).values(_erased(usage)),
        usage.c.account_id == _ACCOUNT,
        usage.c.idempotency_digest.is_not(None),
        id_="completion_id",
    ),
)
_ERASING = (accounts.c.id, accounts.c.erasing_email, accounts.c.erased_at)
UNFINISHED = Statement(select(*_ERASING).where(accounts.c.erasing_email.is_not(None)).order_by(accounts.c.id))

FINISH = Statement(update(accounts).where(accounts.c.id == _ACCOUNT).values(erasing_email=None))


class Erasing(msgspec.Struct, frozen=True):
    """An account of which something is left to erase."""

    account_id: str
    address: str
    now_ms: int  # when it was erased

    def values(self) -> dict[str, object]:
        return {"account": self.account_id, "address": self.address, "now": self.now_ms}


def begin(tx: Transaction, account: Account, now_ms: int) -> None:
    """End every key and session, and take out the address. The account must have no money and be locked."""
    tx.overwrite_deleted()
    email = placeholder(account.id)
    values = _erased(accounts, email=email, erased_at=now_ms, suspended_at=now_ms, erasing_email=account.email)
    change_row(tx, accounts, account.id, **values)
    tx.change(REMOVE_LINKS, {"address": account.email})
    for remove in REMOVE_FEW:
        tx.change(remove, {"account": account.id})


async def list_unfinished(store: Store) -> list[Erasing]:
    return [Erasing(*row) for row in await store.rows(UNFINISHED, {})]


async def erase_remaining(store: Store, erasing: Erasing, count: int = BATCH_ROWS, pause_s: float = PAUSE_S) -> None:
    """Erase what is left, in transactions of at most `count` rows. Several processes may do it at once."""
    values = erasing.values()
    for step in STEPS:
        async for rows in step.batches(store, values, count):
            with_digests = [{**row, "random_digest": secrets.token_bytes(32)} for row in rows]
            await store.transact(partial(_change_each, change=step.change, rows=with_digests))
            await asyncio.sleep(pause_s)
    await store.transact(partial(_change_each, change=FINISH, rows=[values]))


def _change_each(tx: Transaction, change: Statement, rows: Sequence[Values]) -> None:
    tx.overwrite_deleted()
    tx.change_each(change, rows)


def placeholder(account_id: str) -> str:
    """What replaces the address. It is not an address, so nobody can sign in with it."""
    return f"erased-{account_id}".lower()
