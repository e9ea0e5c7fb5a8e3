"""Credit that is given or taken outside of requests, debts, and the references that make commands idempotent.

Each move is an entry and its change of the balance, in one transaction that has locked the account. The invariants:

- the balance is the sum of the entries, stays below its limit, and is never below what is held;
- its granted part changes with each entry by what the entry says. Granted credit is taken before paid credit, except
  for a payment that is returned or disputed, and for debts, most of which such payments leave;
- only free credit (the balance less what is held) is taken; what cannot be taken yet is a *debt*;
- an account with a debt has no free credit: ended holds (rules.py) and new credit pay its oldest debt first. Each such
  payment is an entry of kind `correction` with the id of the debt;
- a source (a voucher, a payment, a command) gives credit once, takes it once, and leaves one debt: the database
  refuses a second row.
"""

import asyncio

import msgspec
from sqlalchemy import bindparam, insert, literal_column, select, text, update

from cadenza.core.money import format_dollars
from cadenza.ledger import lots
from cadenza.ledger.lots import CreditLot
from cadenza.ledger.origins import PAID_FIRST, CreditMove
from cadenza.ledger.rows import ADD_SOURCED_ENTRY, ENTRY_COLUMNS, entry_row
from cadenza.ledger.rules import granted_part
from cadenza.store.schema import accounts, command_references, debts, entries, reserves
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store, Transaction

BALANCE_NANO_LIMIT = 2**62
POLL_S = 0.05
LOOKS = 20
_OF_ACCOUNT = accounts.c.id == bindparam("account")
_MONEY = (accounts.c.balance_nano, accounts.c.held_nano, accounts.c.debt_nano, accounts.c.granted_nano)
GRANT = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano < bindparam("most"))
    .values(
        balance_nano=accounts.c.balance_nano + bindparam("amount"),
        granted_nano=accounts.c.granted_nano + bindparam("granted"),
    )
    .returning(*_MONEY)
)
TAKE = Statement(
    update(accounts)
    .where(_OF_ACCOUNT, accounts.c.balance_nano - accounts.c.held_nano >= bindparam("amount"))
    .values(
        balance_nano=accounts.c.balance_nano - bindparam("amount"),
        granted_nano=accounts.c.granted_nano - bindparam("granted"),
    )
    .returning(accounts.c.balance_nano)
)
_LOCK = update(accounts).where(_OF_ACCOUNT).values(balance_nano=accounts.c.balance_nano)
LOCK = Statement(_LOCK.returning(*_MONEY))
FREE = Statement(select(accounts.c.balance_nano - accounts.c.held_nano).where(_OF_ACCOUNT))
FIND_SOURCE = Statement(
    select(entries.c.amount_nano, entries.c.granted_nano).where(entries.c.source == bindparam("source"))
)
FIND_ENTRY = Statement(
    select(accounts.c.email, entries.c.amount_nano)
    .join_from(entries, accounts)
    .where(entries.c.source == bindparam("source"))
)
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
ADD_DEBT_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS, "origin", "debt_id")
GRANTED_OF_DEBT = Statement(
    select(total(entries.c.granted_nano)).where(
        entries.c.kind == literal_column("'correction'"),  # as the index on corrections has it: charges are not read
        entries.c.completion_id.is_(None),
        entries.c.debt_id == bindparam("debt"),
    )
)
OWE = Statement(update(accounts).where(_OF_ACCOUNT).values(debt_nano=accounts.c.debt_nano + bindparam("amount")))
PAY = Statement(
    update(accounts)
    .where(_OF_ACCOUNT)
    .values(
        debt_nano=accounts.c.debt_nano - bindparam("amount"),
        balance_nano=accounts.c.balance_nano - bindparam("amount"),
        granted_nano=accounts.c.granted_nano - bindparam("granted"),
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
    granted_nano: int


class MovedCredit(msgspec.Struct, frozen=True):
    """The account and the amount of an entry."""

    email: str
    amount_nano: int


class TakenBack(msgspec.Struct, frozen=True):
    """What was taken at once, what became a debt, and the new balance."""

    taken_nano: int
    owed_nano: int
    balance_nano: int


class Cancelled(msgspec.Struct, frozen=True):
    """A debt that was cancelled: what was paid of it, the granted part of that, and what was left."""

    paid_nano: int = 0
    granted_nano: int = 0
    left_nano: int = 0


class ReferenceUse(msgspec.Struct, frozen=True):
    """The command that used a reference: what it was, and the id of what it made."""

    digest: bytes
    action: str
    arguments_digest: bytes
    subject: str
    at: int


def grant(tx: Transaction, account_id: str, amount_nano: int, note: str, now_ms: int) -> int:
    """Add opening credit, which has no source, and return the new balance."""
    balance_nano = give(tx, CreditMove(account_id, "opening", amount_nano, note, now_ms))
    if balance_nano is None:  # not `assert`, which `python -O` removes
        raise AssertionError("a balance above its limit")
    return balance_nano


def give(tx: Transaction, move: CreditMove) -> int | None:
    """Add credit, which pays debts first, and return the new balance.

    None, and nothing is changed, if the balance would reach its limit.
    """
    account_id, amount_nano = move.account_id, move.amount_nano
    assert 0 < amount_nano < BALANCE_NANO_LIMIT, "credit is added: the amount is above zero and below the limit"
    assert 0 <= move.granted_nano <= amount_nano
    before = lock_money(tx, account_id)
    after_nano = min(before.granted_nano, before.balance_nano) + move.granted_nano
    granted_nano = after_nano - before.granted_nano
    values = {"account": account_id, "amount": amount_nano, "granted": granted_nano}
    moved = tx.row(GRANT, {**values, "most": BALANCE_NANO_LIMIT - amount_nano})
    if moved is None:
        return None
    tx.change(ADD_SOURCED_ENTRY, entry_row(move, amount_nano, granted_nano))
    if move.kind == "grant" and move.granted_nano:
        _add_lot(tx, move, after_nano - move.granted_nano)
    balance_nano, held_nano, debt_nano, _ = moved
    paid_nano = min(debt_nano, balance_nano - held_nano)
    return pay_debts(tx, account_id, paid_nano, move.now_ms) if paid_nano else int(balance_nano)


def _add_lot(tx: Transaction, move: CreditMove, before_nano: int) -> None:
    """Add a lot for a grant that expires, or one beside such grants. So much granted credit was there before."""
    account_id, now_ms = move.account_id, move.now_ms
    lots_left = lots.settle(tx, account_id, before_nano, now_ms)
    if not lots_left and move.expires_at is None:
        return
    if remaining_nano := before_nano - sum([lot.left_nano for lot in lots_left]):
        lots.add(tx, CreditLot(0, account_id, "", remaining_nano, None), now_ms)
    lots.add(tx, CreditLot(0, account_id, move.note, move.amount_nano, move.expires_at), now_ms)


def expire(tx: Transaction, account_id: str, now_ms: int) -> int:
    """Take what is left of granted credit that has expired, as far as it is free. Return how much was taken."""
    taken_nano, money = 0, lock_money(tx, account_id)
    for lot in lots.settle(tx, account_id, min(money.granted_nano, money.balance_nano), now_ms):
        if lot.expires_at is None or lot.expires_at > now_ms:
            break
        part_nano = min(lot.left_nano, money.balance_nano - money.held_nano)
        if part_nano < lot.left_nano:
            ask_others(tx, account_id, "")
        if part_nano:
            source = f"expiry:{lot.id}:{lot.left_nano}"  # once for what is left
            take(tx, CreditMove(account_id, "expiry", part_nano, lot.note, now_ms, source))
            lots.change(tx, msgspec.structs.replace(lot, left_nano=lot.left_nano - part_nano), now_ms)
            taken_nano, money = taken_nano + part_nano, lock_money(tx, account_id)
    return taken_nano


def take(tx: Transaction, move: CreditMove) -> TakenBack:
    """Take credit back: free credit at once, by an entry, and the rest later, as a debt. The entry may be of nothing.

    Then the processes that have reserved credit of the account are asked to give back what they do not use.
    """
    account_id, amount_nano = move.account_id, move.amount_nano
    assert amount_nano > 0
    money = lock_money(tx, account_id)
    taken_nano = min(amount_nano, money.balance_nano - money.held_nano)
    is_paid_first = move.origin in PAID_FIRST
    granted_nano = granted_part(money.balance_nano, money.granted_nano, taken_nano, is_paid_first=is_paid_first)
    moved = tx.row(TAKE, {"account": account_id, "amount": taken_nano, "granted": granted_nano})
    if moved is None:  # not `assert`: the entry must not be written without its balance
        raise AssertionError("credit that is free and locked can be taken")
    tx.change(ADD_SOURCED_ENTRY, entry_row(move, -taken_nano, -granted_nano))
    owed_nano = amount_nano - taken_nano
    if owed_nano:
        debt = (account_id, move.source, move.note, owed_nano, owed_nano, move.now_ms)
        tx.change(ADD_DEBT, dict(zip(DEBT_COLUMNS, debt, strict=True)))
        tx.change(OWE, {"account": account_id, "amount": owed_nano})
        tx.change(ASK, {"account": account_id, "me": ""})
        tx.announce()
    return TakenBack(taken_nano, owed_nano, int(moved[0]))


def lock_money(tx: Transaction, account_id: str) -> Money:
    """Lock an account and return its money."""
    row = tx.row(LOCK, {"account": account_id})
    if row is None:  # not `assert`, which `python -O` removes
        raise AssertionError("no such account")
    money = Money(*map(int, row))
    assert 0 <= money.held_nano <= money.balance_nano < BALANCE_NANO_LIMIT
    assert money.debt_nano >= 0
    assert money.granted_nano >= 0
    return money


def amount_of_source(tx: Transaction, source: str) -> tuple[int, int] | None:
    """The amount of the entry that this source made, if it made one, and the granted part of it."""
    row = tx.row(FIND_SOURCE, {"source": source})
    return None if row is None else (int(row[0]), int(row[1]))


def find_entry(tx: Transaction, source: str) -> MovedCredit | None:
    """The entry that this source made."""
    row = tx.row(FIND_ENTRY, {"source": source})
    return MovedCredit(*row) if row else None


def taken_by(tx: Transaction, source: str) -> int:
    """What was taken back for this source, at once or as a debt, paid or not."""
    entry, debt = amount_of_source(tx, source), tx.row(FIND_DEBT, {"source": source})
    return (-entry[0] if entry else 0) + (int(debt[1]) if debt else 0)


async def gather_free(store: Store, account_id: str, amount_nano: int) -> None:
    """If less than this is free, wait up to a second for the unused part of the processes' reserves."""
    for _ in range(LOOKS):
        [free_nano] = await store.row(FREE, {"account": account_id}) or [0]
        if free_nano >= amount_nano or await store.row(SPARE, {"account": account_id, "me": ""}) is None:
            return
        await store.transact(lambda tx: ask_others(tx, account_id, ""))
        await asyncio.sleep(POLL_S)


def ask_others(tx: Transaction, account_id: str, process: str) -> bool:
    """Ask the processes other than this one for the unused part of their reserves. Return whether any has one."""
    values = {"account": account_id, "me": process}
    if tx.change(ASK, values):
        tx.announce()
        return True
    return tx.row(SPARE, values) is not None


def pay_debts(tx: Transaction, account_id: str, amount_nano: int, now_ms: int) -> int:
    """Pay debts of a locked account from its free credit, the oldest first. Return the new balance."""
    remaining_nano, money = amount_nano, lock_money(tx, account_id)
    balance_nano, granted_nano = money.balance_nano, money.granted_nano
    for debt_id, note, whole_nano, left_nano in tx.rows(OPEN_DEBTS, {"account": account_id}):
        if part_nano := min(remaining_nano, left_nano):
            remaining_nano -= part_nano
            tx.change(LOWER_DEBT, {"debt": debt_id, "amount": part_nano})
            said = f"{note}: pays a debt of {format_dollars(whole_nano)} dollars"
            taken_nano = granted_part(balance_nano, granted_nano, part_nano, is_paid_first=True)
            balance_nano, granted_nano = balance_nano - part_nano, granted_nano - taken_nano
            entry = entry_row(CreditMove(account_id, "debt", part_nano, said, now_ms), -part_nano, -taken_nano)
            tx.change(ADD_DEBT_ENTRY, {**entry, "debt_id": debt_id})
    values = {"account": account_id, "amount": amount_nano, "granted": money.granted_nano - granted_nano}
    moved = tx.row(PAY, values)
    if remaining_nano or amount_nano <= 0 or moved is None:  # not `assert`: no balance changes without its entries
        raise AssertionError("nothing, or more than the account owes, was paid")
    return int(moved[0])


def cancel_debt(tx: Transaction, account_id: str, source: str) -> Cancelled:
    """Cancel the debt of a source, if it has one."""
    debt = tx.row(FIND_DEBT, {"source": source})
    if debt is None:
        return Cancelled()
    debt_id, whole_nano, left_nano = debt
    assert 0 <= left_nano <= whole_nano
    if left_nano:
        tx.change(CANCEL_DEBT, {"debt": debt_id, "paid": whole_nano - left_nano})
        tx.change(OWE, {"account": account_id, "amount": -left_nano})
    row = tx.row(GRANTED_OF_DEBT, {"debt": debt_id})
    return Cancelled(int(whole_nano - left_nano), -int(row[0]) if row else 0, int(left_nano))


def use_reference(tx: Transaction, use: ReferenceUse) -> ReferenceUse | None:
    """Store that a command used its reference. If that was used before, change nothing and return the earlier use.

    Postgres waits for a transaction that is using the same reference.
    """
    if tx.change(ADD_REFERENCE, msgspec.structs.asdict(use)):
        return None
    return get_use(tx, use.digest)


def get_use(tx: Transaction, digest: bytes) -> ReferenceUse | None:
    row = tx.row(FIND_REFERENCE, {"digest": digest})
    return ReferenceUse(*row) if row else None


async def find_reference(store: Store, digest: bytes) -> ReferenceUse | None:
    row = await store.row(FIND_REFERENCE, {"digest": digest})
    return ReferenceUse(*row) if row else None
