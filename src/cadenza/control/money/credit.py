"""The credit of an account: grants and corrections by an operator, and below which balance its owner wants a notice.

A correction takes at most the balance, under the account's lock: free credit at once, and what requests in flight hold
as a debt, when they end. Processes are first asked to give back reserved credit that they do not use.
"""

import msgspec

from cadenza.control.account.accounts import NOTE_CHARS_MAX, find_account, get_account
from cadenza.control.money.idempotency import make_command
from cadenza.core.errors import ControlError
from cadenza.core.money import AMOUNT_NANO_MAX, format_dollars
from cadenza.core.records import Operator, Owner
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit, lots
from cadenza.ledger.credit import BALANCE_NANO_LIMIT, Money
from cadenza.ledger.lots import CreditLot
from cadenza.ledger.origins import CreditMove
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

CREDIT_DAYS_MAX = 3650


class Granted(msgspec.Struct, frozen=True):
    """The account after a grant. `earlier_at` is set if an earlier call with the same reference made it."""

    account: Account
    earlier_at: int | None = None


async def give_credit(  # noqa: PLR0913, PLR0917 one command
    store: Store,
    email: str,
    amount_nano: int,
    note: str,
    now_ms: int,
    by: Operator,
    reference: str = "",
    expires_days: int | None = None,
) -> Granted:
    """Add credit, which pays a debt of the account first. A reference makes it idempotent.

    What is left of it after `expires_days` is taken back.
    """
    if amount_nano <= 0:
        raise ControlError("The amount of credit must be above zero.")
    check_note(note)
    check_credit_days(expires_days)
    account = await get_account(store, email)
    arguments = (account.id, amount_nano) if expires_days is None else (account.id, amount_nano, expires_days)
    command = make_command(by, "credit.grant", arguments, reference)

    def give(tx: Transaction) -> Granted:
        account, claim = find_account(tx, email), command.claim(tx, now_ms)
        if not claim.is_new:
            return Granted(account, claim.earlier_at)
        check_limit(account, amount_nano)
        expires_at = expiry_of(expires_days, now_ms)
        move = CreditMove(account.id, "grant", amount_nano, note, now_ms, command.source, expires_at=expires_at)
        credit.give(tx, move)
        days = "" if expires_days is None else f" for {expires_days} days"
        detail = f"{format_dollars(amount_nano)} dollars{days}" + (f": {note}" if note else "")
        audit_events.add(tx, AuditEvent(now_ms, by, "credit.grant", account.id, detail=detail))
        return Granted(find_account(tx, account.email))

    return await command.run(lambda: make_change(store, give))


def check_limit(account: Account, amount_nano: int) -> None:
    if account.balance_nano + amount_nano >= BALANCE_NANO_LIMIT:
        raise ControlError(
            f"The balance of {account.email} is {format_dollars(account.balance_nano)} dollars "
            f"and must stay below {format_dollars(BALANCE_NANO_LIMIT)}."
        )


def check_note(note: str) -> None:
    if len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise ControlError(f"A note is one line of at most {NOTE_CHARS_MAX} characters.")


def check_reason(what: str, reason: str) -> str:
    """The reason without spaces around it."""
    reason = reason.strip()
    if not reason or len(reason) > NOTE_CHARS_MAX or not reason.isprintable():
        raise ControlError(f"A {what} needs a reason: one line of at most {NOTE_CHARS_MAX} characters.")
    return reason


def check_credit_days(days: int | None) -> None:
    if days is not None and not 1 <= days <= CREDIT_DAYS_MAX:
        raise ControlError(f"Credit expires after 1 to {CREDIT_DAYS_MAX:,} days.")


def expiry_of(days: int | None, now_ms: int) -> int | None:
    return None if days is None else now_ms + days * DAY_MS


async def list_expiring(store: Store, account: Account) -> list[CreditLot]:
    """What will expire of the credit of an account, the next first."""
    return await lots.list_expiring(store, account.id, account.granted_nano)


class Correction(msgspec.Struct, frozen=True):
    """Credit that was taken back, the part of it that is a debt, and the balance afterwards.

    `earlier_at` is set if an earlier call with the same reference did it.
    """

    email: str
    taken_nano: int
    balance_nano: int
    owed_nano: int = 0
    earlier_at: int | None = None


async def correct_credit(  # noqa: PLR0913, PLR0917 one command
    store: Store, email: str, amount_nano: int, reason: str, by: Operator, now_ms: int, reference: str = ""
) -> Correction:
    """Take credit back. The amount is negative, like its entry. A reference makes it idempotent."""
    if not -AMOUNT_NANO_MAX <= amount_nano < 0:
        raise ControlError("A correction takes credit back: write a negative amount, like -1.00.")
    reason = check_reason("correction", reason)
    account = await get_account(store, email)
    command = make_command(by, "credit.correct", (account.id, amount_nano), reference)
    await credit.gather_free(store, account.id, -amount_nano)

    def correct(tx: Transaction) -> Correction:
        account, claim = find_account(tx, email), command.claim(tx, now_ms)
        if not claim.is_new:
            return Correction(account.email, -amount_nano, account.balance_nano, account.debt_nano, claim.earlier_at)
        money = credit.lock_money(tx, account.id)
        if money.balance_nano - money.debt_nano < -amount_nano:
            raise ControlError(_too_much(account.email, -amount_nano, money))
        taken = credit.take(tx, CreditMove(account.id, "correction", -amount_nano, reason, now_ms, command.source))
        detail = f"{format_dollars(amount_nano)} dollars: {reason}"
        audit_events.add(tx, AuditEvent(now_ms, by, "credit.correct", account.id, detail=detail))
        return Correction(account.email, -amount_nano, taken.balance_nano, taken.owed_nano)

    return await command.run(lambda: make_change(store, correct))


async def set_low_balance(store: Store, owner: Owner, below_nano: int, now_ms: int) -> None:
    """Have the owner notified below this balance. Zero turns the notice off."""
    if not 0 <= below_nano <= AMOUNT_NANO_MAX:
        raise ControlError("Write an amount of dollars from zero, like 1.00.")

    def change(tx: Transaction) -> None:
        accounts.notice_below(tx, owner.account_id, below_nano)
        detail = f"below {format_dollars(below_nano)} dollars"
        audit_events.add(tx, AuditEvent(now_ms, owner, "credit.notice", owner.account_id, detail=detail))

    await store.transact(change)


def _too_much(email: str, amount_nano: int, money: Money) -> str:
    owed = f", and a debt of {format_dollars(money.debt_nano)} is taken from it first" if money.debt_nano else ""
    return (
        f"{format_dollars(amount_nano)} dollars cannot be taken from {email}: the balance is "
        f"{format_dollars(money.balance_nano)}{owed}."
    )
