"""Granted credit that expires. Each grant of an account that has such credit is a *lot*, with what is left of it.

Granted credit is spent before paid credit, and of it what expires first, so no charge has to say which lot it took.
What is left of the lots follows from what is left of all granted credit, and is written when a lot is added or
expires. If more is left than the lots have, because a request was refunded, the rest does not expire.

A sweep takes what is left of a lot after its time, by an entry: free credit at once. What running requests hold is not
taken from them: they may spend it, and the next sweep takes the rest.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import bindparam, insert, select, update

from cadenza.store.schema import credit_lots
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

NEVER = 2**62  # after all times
_IS_OPEN = credit_lots.c.ended_at.is_(None)
LOT_COLUMNS = ("account_id", "note", "amount_nano", "left_nano", "created_at", "expires_at")


class CreditLot(msgspec.Struct, frozen=True):
    """A grant of which something may be left. Without `expires_at` it does not expire."""

    id: int
    account_id: str
    note: str
    left_nano: int
    expires_at: int | None


_COLUMNS = [credit_lots.c[name] for name in CreditLot.__struct_fields__]
OPEN = Statement(select(*_COLUMNS).where(credit_lots.c.account_id == bindparam("account"), _IS_OPEN))
DUE = Statement(
    select(credit_lots.c.account_id)
    .where(credit_lots.c.expires_at <= bindparam("now"), _IS_OPEN)
    .order_by(credit_lots.c.expires_at)
    .limit(bindparam("count"))
)
ADD = Statement(insert(credit_lots), *LOT_COLUMNS)
CHANGE = Statement(
    update(credit_lots)
    .where(credit_lots.c.id == bindparam("lot"))
    .values(left_nano=bindparam("left"), ended_at=bindparam("ended"))
)


def spend(lots: Sequence[CreditLot], granted_nano: int) -> list[CreditLot]:
    """What is left of the lots if so much granted credit is left, in the order in which they are spent."""
    spent_nano = max(0, sum([lot.left_nano for lot in lots]) - granted_nano)
    left = list[CreditLot]()
    for lot in sorted(lots, key=lambda lot: (lot.expires_at or NEVER, lot.id)):
        part_nano = min(lot.left_nano, spent_nano)
        spent_nano -= part_nano
        left.append(msgspec.structs.replace(lot, left_nano=lot.left_nano - part_nano))
    assert spent_nano == 0
    return left


def settle(tx: Transaction, account_id: str, granted_nano: int, now_ms: int) -> list[CreditLot]:
    """Write what is left of the lots of a locked account, and return those of which something is."""
    before = {row[0]: CreditLot(*row) for row in tx.rows(OPEN, {"account": account_id})}
    after = spend([*before.values()], granted_nano)
    for lot in after:
        if lot != before[lot.id]:
            change(tx, lot, now_ms)
    return [lot for lot in after if lot.left_nano]


def add(tx: Transaction, lot: CreditLot, now_ms: int) -> None:
    values = (lot.account_id, lot.note, lot.left_nano, lot.left_nano, now_ms, lot.expires_at)
    tx.change(ADD, dict(zip(LOT_COLUMNS, values, strict=True)))


def change(tx: Transaction, lot: CreditLot, now_ms: int) -> None:
    """Write what is left. A lot of which nothing is left has ended."""
    tx.change(CHANGE, {"lot": lot.id, "left": lot.left_nano, "ended": None if lot.left_nano else now_ms})


async def accounts_due(store: Store, now_ms: int, count: int) -> list[str]:
    """Accounts with credit that has expired, those first whose credit expired first."""
    return [*dict.fromkeys(row[0] for row in await store.report(DUE, {"now": now_ms, "count": count}))]


async def list_expiring(store: Store, account_id: str, granted_nano: int) -> list[CreditLot]:
    """What will expire of the granted credit of an account, the next first."""
    lots = [CreditLot(*row) for row in await store.rows(OPEN, {"account": account_id})]
    return [lot for lot in spend(lots, granted_nano) if lot.left_nano and lot.expires_at is not None]
