"""Refunds of requests. A request is refunded once, and at most what it cost: the source of the entry says which one.

Granted credit is spent first, so paid credit is given back first. What a request cost is the sum of its entries: its
metering row may have been removed.
"""

import msgspec
from sqlalchemy import and_, bindparam, func, literal_column, select

from cadenza.ledger.origins import CreditMove
from cadenza.store.schema import accounts, entries
from cadenza.store.statements import Statement, total
from cadenza.store.store import Transaction

IS_CHARGE = entries.c.kind == literal_column("'charge'")  # as the index on charges has it
_later = entries.alias("later")
_CORRECTED = (
    select(total(_later.c.amount_nano))
    .where(
        _later.c.completion_id == entries.c.completion_id,
        _later.c.kind == literal_column("'correction'"),
        func.coalesce(_later.c.origin, literal_column("''")) != literal_column("'refund'"),
    )
    .scalar_subquery()
)
FIND = Statement(
    select(
        entries.c.account_id,
        accounts.c.email,
        accounts.c.erased_at,
        -entries.c.amount_nano - _CORRECTED,
        entries.c.granted_nano,
    )
    .join_from(entries, accounts, entries.c.account_id == accounts.c.id)
    .where(and_(IS_CHARGE, entries.c.completion_id == bindparam("completion")))
)


class ChargedRequest(msgspec.Struct, frozen=True):
    """A request that was charged: its account, what it cost, and how much of that was granted credit."""

    completion_id: str
    account_id: str
    email: str
    is_erased: bool
    cost_nano: int
    granted_nano: int

    @property
    def source(self) -> str:
        return f"refund:{self.completion_id}"

    def refund(self, amount_nano: int, reason: str, now_ms: int) -> CreditMove:
        assert 0 < amount_nano <= self.cost_nano
        paid_nano = self.cost_nano - self.granted_nano
        return CreditMove(
            self.account_id,
            "refund",
            amount_nano,
            reason,
            now_ms,
            self.source,
            self.completion_id,
            returned_nano=max(0, amount_nano - paid_nano),
        )


def find(tx: Transaction, completion_id: str) -> ChargedRequest | None:
    """The charge of a request, as it was corrected since."""
    row = tx.row(FIND, {"completion": completion_id})
    if row is None:
        return None
    account_id, email, erased_at, cost, granted_nano = row
    cost_nano = int(cost)
    granted = min(-granted_nano, cost_nano)
    return ChargedRequest(completion_id, account_id, email, erased_at is not None, cost_nano, granted)
