"""Accounts whose balance is below the amount at which their owner wants a notice.

An account that never made a request is new, not low. An account is claimed before its owner is told, so that only one
of several processes sends the notice.
"""

from sqlalchemy import bindparam, select, update

from cadenza.store.schema import accounts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, change_row
from cadenza.store.tables.accounts import COLUMNS, HAS_REQUESTS, Account

BATCH_ROWS = 200
_OF_ACCOUNT = accounts.c.id == bindparam("account")
_IS_LOW = accounts.c.balance_nano < accounts.c.low_balance_nano
_IS_UNTOLD = (_IS_LOW, accounts.c.low_noticed_at.is_(None))
FIND = Statement(
    select(*COLUMNS)
    .where(*_IS_UNTOLD, accounts.c.suspended_at.is_(None), HAS_REQUESTS)
    .order_by(accounts.c.id)
    .limit(bindparam("count"))
)
CLAIM = Statement(update(accounts).where(_OF_ACCOUNT, *_IS_UNTOLD).values(low_noticed_at=bindparam("now")))
_HAS_RISEN = (accounts.c.low_noticed_at.is_not(None), ~_IS_LOW)
RISEN = Statement(select(accounts.c.id).where(*_HAS_RISEN).limit(bindparam("count")))
CLEAR = Statement(update(accounts).where(_OF_ACCOUNT, *_HAS_RISEN).values(low_noticed_at=None))


async def clear_risen(store: Store) -> None:
    """Forget the notices of accounts that are no longer low, so that their owners are told the next time."""
    while risen := await store.report(RISEN, {"count": BATCH_ROWS}):
        values = [{"account": account_id} for (account_id,) in risen]
        await store.transact(lambda tx, values=values: tx.change_each(CLEAR, values))  # type: ignore[misc]


async def find_untold(store: Store, count: int) -> list[Account]:
    return [Account(*row) for row in await store.report(FIND, {"count": count})]


async def claim(store: Store, account_id: str, now_ms: int) -> bool:
    """Claim the notice for an account. False if another process has it."""
    return await store.transact(lambda tx: tx.change(CLAIM, {"account": account_id, "now": now_ms})) == 1


async def release(store: Store, account_id: str) -> None:
    """Give up the claim: the notice could not be sent."""
    await store.transact(lambda tx: change_row(tx, accounts, account_id, low_noticed_at=None))
