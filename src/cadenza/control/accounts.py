"""Accounts: create, list, sign in, give credit.

Passwords are hashed with argon2id, in a thread and never inside a transaction. A wrong password and an unknown email
take the same time.
"""

import asyncio
import re
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from cadenza.control.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.records import CLASSES
from cadenza.store import accounts, ledger
from cadenza.store.accounts import Account
from cadenza.store.changes import make_change
from cadenza.store.store import Store, StoreRefused, Transaction

PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1024
EMAIL_CHARS_MAX = 254
NOTE_CHARS_MAX = 200
EMAIL = re.compile(r"[!-?A-~]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
OPENING_NOTE = "opening credit"


async def create_account(
    store: Store, email: str, password: str, credit_nano: int, preferred_class: str, now_ms: int
) -> Account:
    """Create the account and its opening grant in one transaction."""
    normal = _normal_email(email)
    if normal is None:
        raise ControlError(f"{email!r} is not an email address: write it like name@example.org.")
    _check_class(preferred_class)
    if not 0 <= credit_nano < ledger.BALANCE_NANO_LIMIT:
        raise ControlError(f"Opening credit is from zero to less than {format_dollars(ledger.BALANCE_NANO_LIMIT)}.")
    account = Account(
        id="acct_" + secrets.token_urlsafe(18),
        email=normal,
        preferred_class=preferred_class,
        balance_nano=0,
        held_nano=0,
        created_at=now_ms,
    )
    password_hash = await asyncio.to_thread(PasswordHasher().hash, _clean_password(password))

    def create(tx: Transaction) -> Account:
        accounts.add(tx, account, password_hash)
        if credit_nano:
            ledger.grant(tx, account.id, credit_nano, OPENING_NOTE, now_ms)
        return find_account(tx, normal)

    try:
        return await store.transact(create)
    except StoreRefused:
        raise ControlError(f"There is an account for {normal} already.") from None


async def verify_password(store: Store, email: str, password: str) -> Account | None:
    """Return the account if the email and the password belong together."""
    if len(password) > PASSWORD_CHARS_MAX:
        return None
    secret = password.encode(errors="replace")
    normal = _normal_email(email)
    found = await accounts.get_with_password(store, normal) if normal else None
    if found is None:
        await asyncio.to_thread(PasswordHasher().hash, secret)
        return None
    account, password_hash = found
    try:
        await asyncio.to_thread(PasswordHasher().verify, password_hash, secret)
    except VerifyMismatchError:
        return None
    return account


async def list_accounts(store: Store) -> list[Account]:
    return await accounts.list_all(store)


async def give_credit(store: Store, email: str, amount_nano: int, note: str, now_ms: int) -> Account:
    if amount_nano <= 0:
        raise ControlError("The amount of credit must be above zero.")
    if len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise ControlError(f"A note is one line of at most {NOTE_CHARS_MAX} characters.")

    def give(tx: Transaction) -> Account:
        account = find_account(tx, email)
        if account.balance_nano + amount_nano >= ledger.BALANCE_NANO_LIMIT:
            raise ControlError(
                f"The balance of {account.email} is {format_dollars(account.balance_nano)} dollars "
                f"and must stay below {format_dollars(ledger.BALANCE_NANO_LIMIT)}."
            )
        ledger.grant(tx, account.id, amount_nano, note, now_ms)
        return find_account(tx, account.email)

    return await make_change(store, give)


def find_account(tx: Transaction, email: str) -> Account:
    normal = _normal_email(email)
    return _existing(email, accounts.find_by_email(tx, normal) if normal else None)


async def get_account(store: Store, email: str) -> Account:
    normal = _normal_email(email)
    return _existing(email, await accounts.get_by_email(store, normal) if normal else None)


def _existing(email: str, account: Account | None) -> Account:
    if account is None:
        raise ControlError(f"There is no account for {email!r}. 'cadenza account list' shows all accounts.")
    return account


def _normal_email(email: str) -> str | None:
    """Trim and lower-case an address; None where it cannot be one."""
    email = email.strip()
    return email.lower() if len(email) <= EMAIL_CHARS_MAX and EMAIL.fullmatch(email) else None


def _clean_password(password: str) -> bytes:
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise ControlError(f"A password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters.")
    try:
        return password.encode()
    except UnicodeEncodeError:
        raise ControlError("The password is not text in UTF-8: type it again.") from None


def _check_class(preferred_class: str) -> None:
    if preferred_class not in CLASSES:
        raise ControlError(f"{preferred_class!r} is not a class: choose one of {', '.join(CLASSES)}.")
