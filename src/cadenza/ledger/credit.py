"""Credit that is given or taken outside of requests: each move is an entry and its change of the balance, together.

Both statements on an account lock its row, and their conditions are checked under that lock: the balance stays below
its limit, and only free credit (the balance less what is held) is taken. What cannot be taken yet is a debt (debts.py).
"""

import asyncio
from typing import Any

import msgspec
from sqlalchemy import bindparam, case, select, update

from cadenza.ledger import debts
from cadenza.ledger.charge_rows import ADD_SOURCED_ENTRY, entry_row
from cadenza.ledger.transaction import ASK, BALANCE_NANO_LIMIT, GRANT, SPARE, pay_debt
from cadenza.store.schema import accounts, entries
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

LOOK_S = 0.05
LOOKS = 20
_OF_ACCOUNT = accounts.c.id == bindparam("account")
TAKE = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano - accounts.c.held_nano >= bindparam("amount"))
    .values(balance_nano=accounts.c.balance_nano - bindparam("amount"))
    .returning(accounts.c.balance_nano)
)
_LOCK = update(accounts).where(_OF_ACCOUNT).values(balance_nano=accounts.c.balance_nano)
LOCK = Statement(_LOCK.returning(accounts.c.balance_nano, accounts.c.held_nano, accounts.c.debt_nano))
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


class Money(msgspec.Struct, frozen=True):
    """The money of an account that is locked."""

    balance_nano: int
    held_nano: int
    debt_nano: int


class TakenBack(msgspec.Struct, frozen=True):
    """What was taken at once, what is a debt now, and the balance since."""

    taken_nano: int
    owed_nano: int
    balance_nano: int


def give(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Add a grant and return the new balance; None, and nothing is changed, if it would reach its limit.

    A source gives credit once: a second grant of it is refused by the store. A debt of the account is paid first.
    """
    return _add(tx, amount_nano, _entry(account_id, "grant", amount_nano, note, source, now_ms))


def take(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> TakenBack:
    """Take credit back, by a correction: what is free at once, and the rest later, as a debt.

    The processes that have reserved credit of the account are asked to give back what they do not use.
    """
    assert amount_nano > 0
    money = lock_money(tx, account_id)
    balance_nano, taken_nano = money.balance_nano, min(amount_nano, money.balance_nano - money.held_nano)
    if taken_nano:
        moved = tx.row(TAKE, {"account": account_id, "amount": taken_nano})
        if moved is None:  # not `assert`: the entry must not be written without its balance
            raise AssertionError("credit that is free and locked can be taken")
        balance_nano = int(moved[0])
        tx.change(ADD_SOURCED_ENTRY, _entry(account_id, "correction", -taken_nano, note, source, now_ms))
    owed_nano = amount_nano - taken_nano
    if owed_nano:
        debts.add(tx, account_id, owed_nano, note, source, now_ms)
        tx.change(ASK, {"account": account_id, "me": ""})
        tx.announce()
    return TakenBack(taken_nano, owed_nano, balance_nano)


def return_taken(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Add a correction that gives back what another one took; None if the balance would reach its limit."""
    return _add(tx, amount_nano, _entry(account_id, "correction", amount_nano, note, source, now_ms))


def lock_money(tx: Transaction, account_id: str) -> Money:
    """Lock an account and return its money."""
    row = tx.row(LOCK, {"account": account_id})
    assert row
    return Money(*map(int, row))


def amount_of_source(tx: Transaction, source: str) -> int | None:
    """The amount of the entry that this source made, if it made one."""
    row = tx.row(FIND_SOURCE, {"source": source})
    return None if row is None else int(row[0])


def has_taken(tx: Transaction, source: str) -> bool:
    """Whether credit was taken back for this source, at once or as a debt."""
    return amount_of_source(tx, source) is not None or debts.is_owed(tx, source)


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


async def gather_free(store: Store, account_id: str, amount_nano: int) -> None:
    """If less than this is free, wait up to a second for what processes have reserved and do not use."""
    for _ in range(LOOKS):
        if await read_free(store, account_id) >= amount_nano or not await ask_for_spare(store, account_id):
            return
        await asyncio.sleep(LOOK_S)


def notice_below(tx: Transaction, account_id: str, below_nano: int) -> None:
    """From now on, a balance below this amount is low."""
    tx.change(NOTICE_BELOW, {"account": account_id, "below": below_nano})


def _add(tx: Transaction, amount_nano: int, entry: dict[str, Any]) -> int | None:
    assert 0 < amount_nano < BALANCE_NANO_LIMIT
    account_id = entry["account_id"]
    moved = tx.row(GRANT, {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano})
    if moved is None:
        return None
    tx.change(ADD_SOURCED_ENTRY, entry)
    return pay_debt(tx, account_id, moved, entry["created_at"])


def _entry(account_id: str, kind: str, amount_nano: int, note: str, source: str, now_ms: int) -> dict[str, Any]:
    return {**entry_row(account_id, kind, amount_nano, now_ms, note=note), "source": source}
