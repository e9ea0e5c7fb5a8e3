"""Accounts: create, list, and what operators change of them.

An account has no password unless a part gives it one: then its hash is empty. Every change is in the audit log, and
takes effect with the next request, in every process.
"""

import re
import secrets
from collections.abc import Callable

import msgspec

from cadenza.control.money.idempotency import make_command
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.money import format_dollars
from cadenza.core.records import CLASSES, COMMAND_LINE, DEFAULT_CLASS, Actor, Operator, Owner
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import accounts, audit_events, sign_in
from cadenza.store.tables.accounts import Account, AccountsFound
from cadenza.store.tables.audit_events import AuditEvent

EMAIL_CHARS_MAX = 254
NOTE_CHARS_MAX = 200
EMAIL = re.compile(r"[!-?A-~]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class NewAccount(msgspec.Struct, frozen=True):
    """An account to be created. `verified_at` is when its address was verified."""

    email: str
    password_hash: str = ""
    credit_nano: int = 0
    preferred_class: str = DEFAULT_CLASS
    verified_at: int | None = None
    is_operator: bool = False


async def create_account(  # noqa: PLR0913, PLR0917 one command
    store: Store,
    email: str,
    credit_nano: int,
    preferred_class: str,
    now_ms: int,
    reference: str = "",
    password_hash: str = "",
) -> Account:
    """Create an account from the command line, with its opening grant, in one transaction. Idempotent by reference."""
    normal = require_email(email)
    check_class(preferred_class)
    if not 0 <= credit_nano < credit.BALANCE_NANO_LIMIT:
        raise ControlError(f"Opening credit is from zero to less than {format_dollars(credit.BALANCE_NANO_LIMIT)}.")
    new = NewAccount(normal, password_hash, credit_nano, preferred_class)
    command = make_command(COMMAND_LINE, "account.create", (normal, credit_nano), reference)

    def create(tx: Transaction) -> Account:
        claim = command.claim(tx, now_ms)
        if claim.earlier:
            password = ", with the password that was given then" if password_hash else ""
            raise ControlError(f"With this reference, {normal} was created before{password}. Nothing was changed now.")
        return add_account(tx, new, COMMAND_LINE, now_ms) if claim.is_new else find_account(tx, normal)

    try:
        return await command.run(lambda: store.transact(create))
    except StoreRefused:
        raise ControlError(f"There is an account for {normal} already.") from None


def add_account(tx: Transaction, new: NewAccount, by: Operator | None, now_ms: int) -> Account:
    """Create an account and its opening grant; without `by`, for the owner who signs up."""
    account = Account(
        id="acct_" + secrets.token_urlsafe(18),
        email=new.email,
        preferred_class=new.preferred_class,
        balance_nano=0,
        held_nano=0,
        created_at=now_ms,
        is_operator=new.is_operator,
        verified_at=new.verified_at,
    )
    accounts.add(tx, account, new.password_hash)
    if new.credit_nano:
        credit.grant(tx, account.id, new.credit_nano, "opening credit", now_ms)
    audit_events.add(tx, AuditEvent(now_ms, by or account.owner, "account.create", account.id))
    if new.is_operator:
        event = AuditEvent(now_ms, account.owner, "account.operator", account.id, detail="by the one-time link")
        audit_events.add(tx, event)
    return find_account(tx, new.email)


async def set_class(store: Store, email: str, class_id: str, by: Operator, now_ms: int) -> Account:
    """Choose the class that `auto` means, from the next request on."""
    check_class(class_id)
    event = AuditEvent(now_ms, by, "account.class", detail=class_id)
    return await change_account(
        store, email, event, lambda tx, account: accounts.change(tx, account.id, preferred_class=class_id)
    )


async def suspend_account(store: Store, email: str, by: Operator, now_ms: int) -> Account:
    """Refuse the keys of an account, and end its sessions and links. An operator cannot be suspended."""

    def change(tx: Transaction, account: Account) -> None:
        if account.is_operator:
            how = f": cadenza account operator {account.email} --remove" if by == COMMAND_LINE else ""
            raise ControlError(f"{account.email} is an operator. Take the role away first{how}.")
        accounts.change(tx, account.id, suspended_at=account.suspended_at or now_ms)
        sign_in.end_sessions(tx, account.id)
        sign_in.remove_links(tx, account.id)

    return await change_account(store, email, AuditEvent(now_ms, by, "account.suspend"), change)


async def resume_account(store: Store, email: str, by: Operator, now_ms: int) -> Account:
    event = AuditEvent(now_ms, by, "account.resume")
    return await change_account(
        store, email, event, lambda tx, account: accounts.change(tx, account.id, suspended_at=None)
    )


async def change_account(
    store: Store, email: str, event: AuditEvent, change: Callable[[Transaction, Account], None]
) -> Account:
    """Change an account, and add the event to the audit log."""

    def work(tx: Transaction) -> Account:
        account = find_account(tx, email)
        change(tx, account)
        audit_events.add(tx, msgspec.structs.replace(event, account_id=account.id))
        return find_account(tx, account.email)

    return await make_change(store, work)


async def list_accounts(store: Store) -> list[Account]:
    return await accounts.list_all(store)


async def find_accounts(store: Store, besides: str) -> AccountsFound:
    """Whether there are accounts, any besides this address, and an operator."""
    return await accounts.find_any(store, besides)


def find_account(tx: Transaction, email: str) -> Account:
    normal = normal_email(email)
    return _existing(email, accounts.find_by_email(tx, normal) if normal else None)


async def get_account(store: Store, email: str) -> Account:
    normal = normal_email(email)
    return _existing(email, await accounts.get_by_email(store, normal) if normal else None)


async def get_owner(store: Store, email: str) -> Owner:
    """The owner of the account with this address, for whom the command line acts."""
    return Owner((await get_account(store, email)).id, COMMAND_LINE.name)


def check_owner(by: Actor, account: Account) -> None:
    """Raise Unknown for an owner of another account."""
    if isinstance(by, Owner) and by.account_id != account.id:
        raise Unknown("account")


async def get_account_or_only_one(store: Store, email: str | None) -> Account:
    """The account with this address; without one, the only active account that there is."""
    if email is not None:
        return await get_account(store, email)
    ids = await accounts.list_active_ids(store, 2)
    if len(ids) > 1:
        raise ControlError(
            "There are several accounts: name one with --account EMAIL. 'cadenza account list' shows them."
        )
    found = await accounts.get(store, ids[0]) if ids else None
    if found is None:
        raise ControlError("There is no active account. 'cadenza account create EMAIL' makes one.")
    return found


def _existing(email: str, account: Account | None) -> Account:
    if account is None:
        raise ControlError(f"There is no account for {email!r}. 'cadenza account list' shows all accounts.")
    return account


def normal_email(email: str) -> str | None:
    """The address trimmed and in lower case; None if it is malformed."""
    email = email.strip()
    return email.lower() if len(email) <= EMAIL_CHARS_MAX and EMAIL.fullmatch(email) else None


def require_email(email: str) -> str:
    normal = normal_email(email)
    if normal is None:
        raise ControlError(f"{email!r} is not an email address: write it like name@example.org.")
    return normal


def check_class(preferred_class: str) -> None:
    if preferred_class not in CLASSES:
        raise ControlError(f"{preferred_class!r} is not a class: choose one of {', '.join(CLASSES)}.")
