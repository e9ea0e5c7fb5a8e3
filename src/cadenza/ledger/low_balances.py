"""Accounts whose balance is below the amount at which their owner wants to be told.

An account that never made a request is not low: it is new. An account is claimed before it is told, so that of several
processes one tells it.
"""

from sqlalchemy import bindparam, exists, select, update

from cadenza.store.schema import accounts, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.accounts import COLUMNS, Account

_IS_LOW = accounts.c.balance_nano < accounts.c.low_balance_nano
_IS_UNTOLD = (_IS_LOW, accounts.c.low_noticed_at.is_(None))
FIND = Statement(
    select(*COLUMNS)
    .where(*_IS_UNTOLD, accounts.c.suspended_at.is_(None), exists().where(usage.c.account_id == accounts.c.id))
    .order_by(accounts.c.id)
    .limit(bindparam("count"))
)
CLAIM = Statement(
    update(accounts).where(accounts.c.id == bindparam("account"), *_IS_UNTOLD).values(low_noticed_at=bindparam("now"))
)
GIVE_BACK = Statement(update(accounts).where(accounts.c.id == bindparam("account")).values(low_noticed_at=None))
CLEAR = Statement(update(accounts).where(accounts.c.low_noticed_at.is_not(None), ~_IS_LOW).values(low_noticed_at=None))


async def clear_risen(store: Store) -> None:
    """Forget the notices of accounts that are not low any more, so that they are told the next time."""
    await store.transact(lambda tx: tx.change(CLEAR, {}))


async def find_untold(store: Store, count: int) -> list[Account]:
    return [Account(*row) for row in await store.rows(FIND, {"count": count})]


async def claim(store: Store, account_id: str, now_ms: int) -> bool:
    """Whether this caller is the one to tell it."""
    return await store.transact(lambda tx: tx.change(CLAIM, {"account": account_id, "now": now_ms})) == 1


async def give_back(store: Store, account_id: str) -> None:
    """It was not told after all."""
    await store.transact(lambda tx: tx.change(GIVE_BACK, {"account": account_id}))
