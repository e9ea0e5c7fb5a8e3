"""What an operator may do to an account and to a key. Every act is written to the audit trail in the same transaction.

An account that is an operator cannot be suspended, and the last operator stays one: somebody can always sign in here.
"""

import hashlib
import secrets

from cadenza.control.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.store import acts, keys, ledger, operators, sessions
from cadenza.store.accounts import Account
from cadenza.store.acts import Act
from cadenza.store.changes import make_change
from cadenza.store.store import Store, Transaction

NOTE_CHARS_MAX = 200
LINK_MS = 24 * 60 * 60 * 1000


async def suspend_account(store: Store, account_id: str, by: str, now_ms: int) -> None:
    """Refuse the keys and sessions of an account from now on."""

    def suspend(tx: Transaction) -> None:
        account = find_account(tx, account_id)
        if account.is_operator:
            raise ControlError(f"{account.email} is an operator. Take the role away first, then suspend the account.")
        if operators.suspend(tx, account_id, now_ms):
            sessions.remove_all(tx, account_id)
            acts.add(tx, Act(now_ms, by, "account.suspend", account_id, account_id))

    await make_change(store, suspend)


async def resume_account(store: Store, account_id: str, by: str, now_ms: int) -> None:
    def resume(tx: Transaction) -> None:
        find_account(tx, account_id)
        if operators.resume(tx, account_id):
            acts.add(tx, Act(now_ms, by, "account.resume", account_id, account_id))

    await make_change(store, resume)


async def set_operator(store: Store, account_id: str, is_operator: bool, by: str, now_ms: int) -> None:
    def change(tx: Transaction) -> None:
        account = find_account(tx, account_id)
        if account.is_operator == is_operator:
            return
        if is_operator and account.suspended_at is not None:
            raise ControlError(f"{account.email} is suspended. Resume the account first.")
        if not is_operator and operators.lock_operators(tx) <= {account_id}:
            raise ControlError(f"{account.email} is the last operator. Make another account an operator first.")
        operators.set_operator(tx, account_id, is_operator=is_operator)
        act = "operator.add" if is_operator else "operator.remove"
        acts.add(tx, Act(now_ms, by, act, account_id, account_id))

    await make_change(store, change)


async def grant_credit(store: Store, account_id: str, amount_nano: int, note: str, by: str, now_ms: int) -> Account:
    """Add credit, and return the account as it is then."""
    if amount_nano <= 0:
        raise ControlError("The amount of credit must be above zero.")
    _check_line("A note", note)

    def grant(tx: Transaction) -> Account:
        account = find_account(tx, account_id)
        if account.balance_nano + amount_nano >= ledger.BALANCE_NANO_LIMIT:
            raise ControlError(
                f"The balance of {account.email} is {format_dollars(account.balance_nano)} dollars "
                f"and must stay below {format_dollars(ledger.BALANCE_NANO_LIMIT)}."
            )
        ledger.grant(tx, account_id, amount_nano, note, now_ms)
        acts.add(tx, Act(now_ms, by, "credit.grant", account_id, account_id, _with_note(amount_nano, note)))
        return find_account(tx, account_id)

    return await make_change(store, grant)


async def correct_credit(store: Store, account_id: str, amount_nano: int, reason: str, by: str, now_ms: int) -> Account:
    """Change the balance by an entry with a reason. Credit that is held cannot be taken back."""
    if not amount_nano:
        raise ControlError("The amount of a correction must not be zero.")
    if not reason.strip():
        raise ControlError("A correction needs a reason: the owner of the account sees it in the statement.")
    _check_line("A reason", reason)

    def correct(tx: Transaction) -> Account:
        account = find_account(tx, account_id)
        if not operators.correct(tx, account_id, amount_nano, reason, now_ms):
            free_nano = account.balance_nano - account.held_nano
            raise ControlError(
                f"The free credit of {account.email} is {format_dollars(free_nano)} dollars: no more can be taken back."
            )
        acts.add(tx, Act(now_ms, by, "credit.correct", account_id, account_id, _with_note(amount_nano, reason)))
        return find_account(tx, account_id)

    return await make_change(store, correct)


async def make_reset_link(store: Store, account_id: str, by: str, now_ms: int) -> str:
    """Make a link that sets a new password, and return its secret, which is not stored."""
    secret = secrets.token_urlsafe(32)

    def make(tx: Transaction) -> None:
        account = find_account(tx, account_id)
        digest = hashlib.sha256(secret.encode()).digest()
        operators.add_reset_link(tx, digest, account, now_ms, now_ms + LINK_MS)
        acts.add(tx, Act(now_ms, by, "link.reset", account_id, account_id))

    await store.transact(make)
    return secret


async def revoke_any_key(store: Store, key_id: str, by: str, now_ms: int) -> bool:
    """Revoke a key of any account. False if it was revoked before."""

    def revoke(tx: Transaction) -> bool:
        key = operators.find_key(tx, key_id)
        if key is None:
            raise ControlError("There is no such key.")
        if key.origin == "web":
            raise ControlError("This key belongs to the web chat and is known to nobody. Suspend the account instead.")
        is_first = keys.revoke(tx, key_id, now_ms)
        if is_first:
            acts.add(tx, Act(now_ms, by, "key.revoke", key.account_id, key_id))
        return is_first

    return await make_change(store, revoke)


def find_account(tx: Transaction, account_id: str) -> Account:
    account = operators.find(tx, account_id)
    if account is None:
        raise ControlError("There is no such account.")
    return account


def _check_line(name: str, text: str) -> None:
    if len(text) > NOTE_CHARS_MAX or not text.isprintable():
        raise ControlError(f"{name} is one line of at most {NOTE_CHARS_MAX} characters.")


def _with_note(amount_nano: int, note: str) -> str:
    return f"{format_dollars(amount_nano)} dollars" + (f": {note}" if note else "")
