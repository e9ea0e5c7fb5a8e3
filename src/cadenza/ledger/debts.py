"""Debts of accounts: credit that was to be taken back while requests held it, or after it was spent.

An account with a debt has no free credit: ended holds (ledger/rules.py) and new credit pay its oldest debt first. What
is paid of a debt is an entry of kind `correction` with the id of the debt, so a balance is the sum of the entries at
every moment. All functions need the lock of the account.
"""

from sqlalchemy import bindparam, insert, select, update

from cadenza.core.money import format_dollars
from cadenza.ledger.batch_rows import ENTRY_COLUMNS
from cadenza.ledger.charge_rows import entry_row
from cadenza.store.schema import accounts, debts, entries
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

COLUMNS = ("account_id", "source", "note", "amount_nano", "left_nano", "created_at")
ADD = Statement(insert(debts), *COLUMNS)
OPEN = Statement(
    select(debts.c.id, debts.c.note, debts.c.amount_nano, debts.c.left_nano)
    .where(debts.c.account_id == bindparam("account"), debts.c.left_nano > 0)
    .order_by(debts.c.id)
)
FIND = Statement(
    select(debts.c.id, debts.c.amount_nano, debts.c.left_nano).where(debts.c.source == bindparam("source"))
)
_OF_DEBT = debts.c.id == bindparam("debt")
LOWER = Statement(update(debts).where(_OF_DEBT).values(left_nano=debts.c.left_nano - bindparam("amount")))
CANCEL = Statement(update(debts).where(_OF_DEBT).values(amount_nano=bindparam("paid"), left_nano=0))
ADD_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS, "debt_id")
_OF_ACCOUNT = accounts.c.id == bindparam("account")
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


def add(tx: Transaction, account_id: str, amount_nano: int, note: str, source: str, now_ms: int) -> None:
    """Open a debt. A source leaves one debt: a second one is refused by the store."""
    assert amount_nano > 0
    tx.change(ADD, dict(zip(COLUMNS, (account_id, source, note, amount_nano, amount_nano, now_ms), strict=True)))
    tx.change(OWE, {"account": account_id, "amount": amount_nano})


def pay(tx: Transaction, account_id: str, amount_nano: int, now_ms: int) -> int:
    """Pay the debts of an account from its free credit, the oldest first. Return the new balance."""
    rest_nano = amount_nano
    for debt_id, note, whole_nano, left_nano in tx.rows(OPEN, {"account": account_id}):
        if part_nano := min(rest_nano, left_nano):
            rest_nano -= part_nano
            tx.change(LOWER, {"debt": debt_id, "amount": part_nano})
            said = f"{note}: pays a debt of {format_dollars(whole_nano)} dollars"
            entry = entry_row(account_id, "correction", -part_nano, now_ms, note=said)
            tx.change(ADD_ENTRY, {**entry, "debt_id": debt_id})
    moved = tx.row(PAY, {"account": account_id, "amount": amount_nano})
    if rest_nano or moved is None:  # not `assert`: the balance must not change without its entries
        raise AssertionError("more was paid than the account owes")
    return int(moved[0])


def cancel(tx: Transaction, account_id: str, source: str) -> tuple[int, int] | None:
    """End the debt of a source. Return what was paid of it, and what was left; None if there was no debt."""
    found = tx.row(FIND, {"source": source})
    if found is None:
        return None
    debt_id, whole_nano, left_nano = found
    if left_nano:
        tx.change(CANCEL, {"debt": debt_id, "paid": whole_nano - left_nano})
        tx.change(OWE, {"account": account_id, "amount": -left_nano})
    return int(whole_nano - left_nano), int(left_nano)


def is_owed(tx: Transaction, source: str) -> bool:
    """Whether this source has left a debt, paid or not."""
    return tx.row(FIND, {"source": source}) is not None
