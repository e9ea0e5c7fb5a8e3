"""Credit that is given or taken outside of requests, debts, and the references that make commands idempotent.

Each move is an entry and its change of the balance, in one transaction that has locked the account. The invariants:

- the balance is the sum of the entries, stays below its limit, and is never below what is held;
- only free credit (the balance less what is held) is taken; what cannot be taken yet is a *debt*;
- an account with a debt has no free credit: ended holds (rules.py) and new credit pay its oldest debt first. Each such
  payment is an entry of kind `correction` with the id of the debt;
- a source (a voucher, a payment, a command) gives credit once, takes it once, and leaves one debt: the database
  refuses a second row.
"""

import asyncio
from typing import Any

import msgspec
from sqlalchemy import bindparam, insert, select, text, update

from cadenza.core.money import format_dollars
from cadenza.ledger.rows import ADD_SOURCED_ENTRY, ENTRY_COLUMNS, entry_row
from cadenza.store.schema import accounts, command_references, debts, entries, reserves
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

BALANCE_NANO_LIMIT = 2**62
LOOK_S = 0.05
LOOKS = 20
_OF_ACCOUNT = accounts.c.id == bindparam("account")
_MONEY = (accounts.c.balance_nano, accounts.c.held_nano, accounts.c.debt_nano)
GRANT = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano < bindparam("most"))
    .values(balance_nano=accounts.c.balance_nano + bindparam("amount"))
    .returning(*_MONEY)
)
TAKE = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano - accounts.c.held_nano >= bindparam("amount"))
    .values(balance_nano=accounts.c.balance_nano - bindparam("amount"))
    .returning(accounts.c.balance_nano)
)
_LOCK = update(accounts).where(_OF_ACCOUNT).values(balance_nano=accounts.c.balance_nano)
LOCK = Statement(_LOCK.returning(*_MONEY))
FREE = Statement(select(accounts.c.balance_nano - accounts.c.held_nano).where(_OF_ACCOUNT))
FIND_SOURCE = Statement(select(entries.c.amount_nano).where(entries.c.source == bindparam("source")))
_ELSEWHERE = (reserves.c.account_id == bindparam("account"), reserves.c.process != bindparam("me"))
ASK = Statement(update(reserves).where(*_ELSEWHERE, reserves.c.has_spare, ~reserves.c.is_asked).values(is_asked=True))
SPARE = Statement(select(reserves.c.process).where(*_ELSEWHERE, reserves.c.has_spare))

DEBT_COLUMNS = ("account_id", "source", "note", "amount_nano", "left_nano", "created_at")
ADD_DEBT = Statement(insert(debts), *DEBT_COLUMNS)
OPEN_DEBTS = Statement(
    select(debts.c.id, debts.c.note, debts.c.amount_nano, debts.c.left_nano)
    .where(debts.c.account_id == bindparam("account"), debts.c.left_nano > 0)
    .order_by(debts.c.id)
)
FIND_DEBT = Statement(
    select(debts.c.id, debts.c.amount_nano, debts.c.left_nano).where(debts.c.source == bindparam("source"))
)
_OF_DEBT = debts.c.id == bindparam("debt")
LOWER_DEBT = Statement(update(debts).where(_OF_DEBT).values(left_nano=debts.c.left_nano - bindparam("amount")))
CANCEL_DEBT = Statement(update(debts).where(_OF_DEBT).values(amount_nano=bindparam("paid"), left_nano=0))
ADD_DEBT_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS, "debt_id")
OWE = Statement(update(accounts).where(_OF_ACCOUNT).values(debt_nano=accounts.c.debt_nano + bindparam("amount")))
PAY = Statement(
    update(accounts)
    .where(_OF_ACCOUNT)
    .values(
        debt_nano=accounts.c.debt_nano - bindparam("amount"),
        balance_nano=accounts.c.balance_nano - bindparam("amount"),
    )
    .returning(accounts.c.balance_nano)
)

ADD_REFERENCE = Statement(
    text(
        "INSERT INTO command_references (digest, action, arguments_digest, subject, at)"
        " VALUES (:digest, :action, :arguments_digest, :subject, :at) ON CONFLICT (digest) DO NOTHING"
    )
)
FIND_REFERENCE = Statement(select(command_references).where(command_references.c.digest == bindparam("digest")))


class Money(msgspec.Struct, frozen=True):
    """The money of an account that is locked."""

    balance_nano: int
    held_nano: int
    debt_nano: int


class TakenBack(msgspec.Struct, frozen=True):
    """What was taken at once, what became a debt, and the new balance."""

    taken_nano: int
    owed_nano: int
    balance_nano: int


class ReferenceUse(msgspec.Struct, frozen=True):
    """The command that used a reference: what it was, and the id of what it made."""

    digest: bytes
    action: str
    arguments_digest: bytes
    subject: str
    at: int


def grant(tx: Transaction, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add credit without a source and return the new balance."""
    balance_nano = _add(tx, _entry(account_id, "grant", amount_nano, note, None, now_ms))
    if balance_nano is None:  # not `assert`, which `python -O` removes
        raise AssertionError("no such account, or a balance above its limit")
    return balance_nano


def give(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Add a grant and return the new balance. None, and nothing is changed, if the balance would reach its limit."""
    return _add(tx, _entry(account_id, "grant", amount_nano, note, source, now_ms))


def return_taken(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> int | None:
    """Give back what a correction took, as `give` does, by another correction."""
    return _add(tx, _entry(account_id, "correction", amount_nano, note, source, now_ms))


def take(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> TakenBack:
    """Take credit back, by a correction: free credit at once, and the rest later, as a debt.

    Then the processes that have reserved credit of the account are asked to give back what they do not use.
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
        debt = (account_id, source, note, owed_nano, owed_nano, now_ms)
        tx.change(ADD_DEBT, dict(zip(DEBT_COLUMNS, debt, strict=True)))
        tx.change(OWE, {"account": account_id, "amount": owed_nano})
        tx.change(ASK, {"account": account_id, "me": ""})
        tx.announce()
    return TakenBack(taken_nano, owed_nano, balance_nano)


def lock_money(tx: Transaction, account_id: str) -> Money:
    """Lock an account and return its money."""
    row = tx.row(LOCK, {"account": account_id})
    assert row
    money = Money(*map(int, row))
    assert 0 <= money.held_nano <= money.balance_nano < BALANCE_NANO_LIMIT
    assert money.debt_nano >= 0
    return money


def amount_of_source(tx: Transaction, source: str) -> int | None:
    """The amount of the entry that this source made, if it made one."""
    row = tx.row(FIND_SOURCE, {"source": source})
    return None if row is None else int(row[0])


def has_taken(tx: Transaction, source: str) -> bool:
    """Whether credit was taken back for this source, at once or as a debt, paid or not."""
    return amount_of_source(tx, source) is not None or tx.row(FIND_DEBT, {"source": source}) is not None


async def gather_free(store: Store, account_id: str, amount_nano: int) -> None:
    """If less than this is free, wait up to a second for the unused part of the processes' reserves."""
    for _ in range(LOOKS):
        [free_nano] = await store.row(FREE, {"account": account_id}) or [0]
        if free_nano >= amount_nano or await store.row(SPARE, {"account": account_id, "me": ""}) is None:
            return
        await store.transact(lambda tx: ask_others(tx, account_id, ""))
        await asyncio.sleep(LOOK_S)


def ask_others(tx: Transaction, account_id: str, process: str) -> bool:
    """Ask the processes other than this one for the unused part of their reserves. Return whether any has one."""
    values = {"account": account_id, "me": process}
    if tx.change(ASK, values):
        tx.announce()
        return True
    return tx.row(SPARE, values) is not None


def pay_debts(tx: Transaction, account_id: str, amount_nano: int, now_ms: int) -> int:
    """Pay debts of a locked account from its free credit, the oldest first. Return the new balance."""
    rest_nano = amount_nano
    for debt_id, note, whole_nano, left_nano in tx.rows(OPEN_DEBTS, {"account": account_id}):
        if part_nano := min(rest_nano, left_nano):
            rest_nano -= part_nano
            tx.change(LOWER_DEBT, {"debt": debt_id, "amount": part_nano})
            said = f"{note}: pays a debt of {format_dollars(whole_nano)} dollars"
            entry = entry_row(account_id, "correction", -part_nano, now_ms, note=said)
            tx.change(ADD_DEBT_ENTRY, {**entry, "debt_id": debt_id})
    moved = tx.row(PAY, {"account": account_id, "amount": amount_nano})
    if rest_nano or amount_nano <= 0 or moved is None:  # not `assert`: the balance must not change without its entries
        raise AssertionError("nothing, or more than the account owes, was paid")
    return int(moved[0])


def cancel_debt(tx: Transaction, account_id: str, source: str) -> tuple[int, int]:
    """Cancel the debt of a source, if it has one. Return what was paid of it, and what was left."""
    found = tx.row(FIND_DEBT, {"source": source})
    if found is None:
        return 0, 0
    debt_id, whole_nano, left_nano = found
    assert 0 <= left_nano <= whole_nano
    if left_nano:
        tx.change(CANCEL_DEBT, {"debt": debt_id, "paid": whole_nano - left_nano})
        tx.change(OWE, {"account": account_id, "amount": -left_nano})
    return int(whole_nano - left_nano), int(left_nano)


def use_reference(tx: Transaction, use: ReferenceUse) -> ReferenceUse | None:
    """Store that a command used its reference. If that was used before, change nothing and return the earlier use.

    Postgres waits for a transaction that is using the same reference.
    """
    if tx.change(ADD_REFERENCE, msgspec.structs.asdict(use)):
        return None
    found = tx.row(FIND_REFERENCE, {"digest": use.digest})
    assert found
    return ReferenceUse(*found)


def _add(tx: Transaction, entry: dict[str, Any]) -> int | None:
    account_id, amount_nano, now_ms = entry["account_id"], entry["amount_nano"], entry["created_at"]
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "credit is added: the amount is above zero and below the limit"
    moved = tx.row(GRANT, {"account": account_id, "amount": amount_nano, "most": BALANCE_NANO_LIMIT - amount_nano})
    if moved is None:
        return None
    tx.change(ADD_SOURCED_ENTRY, entry)
    balance_nano, held_nano, debt_nano = moved
    paid_nano = min(debt_nano, balance_nano - held_nano)
    return pay_debts(tx, account_id, paid_nano, now_ms) if paid_nano else int(balance_nano)


def _entry(account_id: str, kind: str, amount_nano: int, note: str, source: str | None, now_ms: int) -> dict[str, Any]:
    return {**entry_row(account_id, kind, amount_nano, now_ms, note=note), "source": source}
