"""Accounts: create, list, sign in, give credit.

Passwords are argon2id hashes, made and checked off the event loop and never inside a transaction. A wrong password
and an unknown email cost the same work.
"""

import asyncio
import re
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.control.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.records import CLASSES
from cadenza.store import accounts, ledger
from cadenza.store.accounts import Account
from cadenza.store.database import Database, StoreRefused

PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1024
EMAIL_CHARS_MAX = 254
NOTE_CHARS_MAX = 200
EMAIL = re.compile(r"[!-?A-~]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
OPENING_NOTE = "opening credit"


async def create_account(
    db: Database, email: str, password: str, credit_nano: int, preferred_class: str, now_ms: int
) -> Account:
    """The account and its opening grant come into being together or not at all."""
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
    try:
        async with db.write() as conn:
            await accounts.insert(conn, account, password_hash)
            if credit_nano:
                await conn.run_sync(ledger.grant, account.id, credit_nano, OPENING_NOTE, now_ms)
            return await find_account(conn, normal)
    except StoreRefused:
        raise ControlError(f"There is an account for {normal} already.") from None


async def verify_password(db: Database, email: str, password: str) -> Account | None:
    """The account, where the password is its own."""
    if len(password) > PASSWORD_CHARS_MAX:
        return None
    secret = password.encode(errors="replace")
    normal = _normal_email(email)
    async with db.read() as conn:
        found = await accounts.find_with_password(conn, normal) if normal else None
    if found is None:
        await asyncio.to_thread(PasswordHasher().hash, secret)
        return None
    account, password_hash = found
    try:
        await asyncio.to_thread(PasswordHasher().verify, password_hash, secret)
    except VerifyMismatchError:
        return None
    return account


async def list_accounts(db: Database) -> list[Account]:
    async with db.read() as conn:
        return await accounts.list_all(conn)


async def give_credit(db: Database, email: str, amount_nano: int, note: str, now_ms: int) -> Account:
    if amount_nano <= 0:
        raise ControlError("Credit is an amount above zero.")
    if len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise ControlError(f"A note is one line of at most {NOTE_CHARS_MAX} characters.")
    async with db.write() as conn:
        account = await find_account(conn, email)
        if account.balance_nano + amount_nano >= ledger.BALANCE_NANO_LIMIT:
            raise ControlError(
                f"The balance of {account.email} is {format_dollars(account.balance_nano)} dollars "
                f"and must stay below {format_dollars(ledger.BALANCE_NANO_LIMIT)}."
            )
        await conn.run_sync(ledger.grant, account.id, amount_nano, note, now_ms)
        return await find_account(conn, account.email)


async def find_account(conn: AsyncConnection, email: str) -> Account:
    normal = _normal_email(email)
    account = await accounts.find_by_email(conn, normal) if normal else None
    if account is None:
        raise ControlError(f"There is no account for {email!r}. 'cadenza account list' shows those there are.")
    return account


def _normal_email(email: str) -> str | None:
    """Lower-case and trimmed; nothing for what cannot be an address."""
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
