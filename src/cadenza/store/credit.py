"""Credit that is given or taken outside of requests: each move is an entry and its change of the balance, together.

Both statements on an account lock its row, and their conditions are checked under that lock: the balance stays below
its limit, and only free credit (the balance less what is held) is taken.
"""

from typing import Any

from sqlalchemy import bindparam, case, insert, select, update

from cadenza.store.ledger import ASK, BALANCE_NANO_LIMIT, GRANT, SPARE
from cadenza.store.schema import accounts, entries
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

ENTRY_COLUMNS = ("account_id", "kind", "amount_nano", "completion_id", "note", "created_at", "source")
ADD_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS)
_OF_ACCOUNT = accounts.c.id == bindparam("account")
TAKE = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano - accounts.c.held_nano >= bindparam("amount"))
    .values(balance_nano=accounts.c.balance_nano - bindparam("amount"))
    .returning(accounts.c.balance_nano)
)
_LOCK = update(accounts).where(_OF_ACCOUNT).values(balance_nano=accounts.c.balance_nano)
LOCK = Statement(_LOCK.returning(accounts.c.balance_nano, accounts.c.held_nano))
MONEY = Statement(select(accounts.c.balance_nano, accounts.c.held_nano).where(_OF_ACCOUNT))
FIND_SOURCE = Statement(select(entries.c.amount_nano).where(entries.c.source == bindparam("source")))
NOTICE_BELOW = Statement(
    update(accounts)
    .where(_OF_ACCOUNT)
    .values(
        low_balance_nano=bindparam("below"),
        low_noticed_at=case((accounts.c.balance_nano < bindparam("below"), accounts.c.low_noticed_at), else_=None),
    )
)


def give(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Add a grant and return the new balance; None, and nothing is changed, if it would reach its limit.

    A source gives credit once: a second grant of it is refused by the store.
    """
    assert 0 < amount_nano < BALANCE_NANO_LIMIT
    moved = tx.row(GRANT, {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano})
    if moved is None:
        return None
    tx.change(ADD_ENTRY, _entry(account_id, "grant", amount_nano, note, source, now_ms))
    return int(moved[0])


def take(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str | None, now_ms: int) -> int | None:
    """Add a correction that takes credit and return the new balance; None if so much is not free."""
    assert amount_nano > 0
    moved = tx.row(TAKE, {"account": account_id, "amount": amount_nano})
    if moved is None:
        return None
    tx.change(ADD_ENTRY, _entry(account_id, "correction", -amount_nano, note, source, now_ms))
    return int(moved[0])


def return_taken(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Add a correction that gives back what another one took; None if the balance would reach its limit."""
    assert 0 < amount_nano < BALANCE_NANO_LIMIT
    moved = tx.row(GRANT, {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano})
    if moved is None:
        return None
    tx.change(ADD_ENTRY, _entry(account_id, "correction", amount_nano, note, source, now_ms))
    return int(moved[0])


def lock_money(tx: Transaction, account_id: str) -> tuple[int, int]:
    """Lock an account and return its balance and what is held of it."""
    row = tx.row(LOCK, {"account": account_id})
    assert row
    return int(row[0]), int(row[1])


def amount_of_source(tx: Transaction, source: str) -> int | None:
    """The amount of the entry that this source made, if it made one."""
    row = tx.row(FIND_SOURCE, {"source": source})
    return None if row is None else int(row[0])


async def read_free(store: Store, account_id: str) -> int:
    """The balance less what is held."""
    row = await store.row(MONEY, {"account": account_id})
    assert row
    return int(row[0]) - int(row[1])


async def ask_for_spare(store: Store, account_id: str) -> bool:
    """Ask the processes to give back what they reserved of an account and do not use. Whether there are any."""
    values = {"account": account_id, "me": ""}
    if await store.row(SPARE, values) is None:
        return False

    def ask(tx: Transaction) -> None:
        if tx.change(ASK, values):
            tx.announce()

    await store.transact(ask)
    return True


def notice_below(tx: Transaction, account_id: str, below_nano: int) -> None:
    """From now on, a balance below this amount is low."""
    tx.change(NOTICE_BELOW, {"account": account_id, "below": below_nano})


def _entry(account_id: str, kind: str, amount_nano: int, note: str, source: str | None, now_ms: int) -> dict[str, Any]:
    values = (account_id, kind, amount_nano, None, note, now_ms, source)
    return dict(zip(ENTRY_COLUMNS, values, strict=True))
