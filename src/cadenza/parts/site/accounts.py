"""What the site adds to accounts: a password, the role of operator, and the preferences of their owners.

Passwords are hashed with argon2id, in a thread and never inside a transaction. Every change is in the audit log, and
takes effect with the next request, in every process.
"""

import asyncio
from collections.abc import Collection
from typing import get_args

import msgspec

from cadenza.control.account.accounts import change_account, check_class, find_account
from cadenza.core.errors import ControlError
from cadenza.core.orders import copied
from cadenza.core.records import COMMAND_LINE, Operator, Owner
from cadenza.fleet.changes import make_change
from cadenza.parts.site.sign_in.passwords import hash_password
from cadenza.parts.site.tables import access_tokens, second_factors, site_secrets
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events, keys, sign_in
from cadenza.store.tables.accounts import Account, Preferences, Theme
from cadenza.store.tables.audit_events import AuditEvent


class PasswordSet(msgspec.Struct, frozen=True):
    """A new password: how many access tokens it revoked, and what still works without it."""

    account: Account
    revoked_tokens: int
    active_tokens: int
    active_keys: int

    @property
    def detail(self) -> str:
        """For the audit log."""
        return f"access tokens revoked: {self.revoked_tokens}" if self.revoked_tokens else ""

    @property
    def consequences(self) -> str:
        """For the owner. Empty if there were neither tokens nor keys."""
        sentences = (
            _say_count(self.revoked_tokens, "access token was revoked", "access tokens were revoked"),
            _say_count(self.active_tokens, "access token still works", "access tokens still work"),
            _say_count(self.active_keys, "API key still works", "API keys still work"),
        )
        return " ".join(filter(None, sentences))


async def set_operator(store: Store, email: str, by: Operator, now_ms: int, *, is_operator: bool) -> Account:
    """Give or take the operator role. Only the command line may take it from the last operator."""

    def change(tx: Transaction, account: Account) -> None:
        if is_operator and account.suspended_at is not None:
            raise ControlError(f"{account.email} is suspended. Resume the account first.")
        if not is_operator and by != COMMAND_LINE and accounts.lock_operators(tx) <= {account.id}:
            raise ControlError(f"{account.email} is the last operator. Make another account an operator first.")
        accounts.change(tx, account.id, is_operator=is_operator)
        if is_operator:
            site_secrets.remove_operator_link(tx)

    event = AuditEvent(now_ms, by, "account.operator" if is_operator else "account.ordinary")
    return await change_account(store, email, event, change)


async def remove_second_factors(store: Store, email: str, by: Operator, now_ms: int) -> Account:
    """For an owner who has lost them all: remove app, recovery codes and passkeys."""

    def change(tx: Transaction, account: Account) -> None:
        second_factors.remove_totp(tx, account.id)
        second_factors.remove_codes(tx, account.id)
        second_factors.remove_passkeys(tx, account.id)

    return await change_account(store, email, AuditEvent(now_ms, by, "second_factor.remove"), change)


async def set_password(store: Store, email: str, password: str, by: Operator, now_ms: int) -> PasswordSet:
    """Give an account a new password. All its sessions and links end, and its access tokens are revoked."""
    password_hash = await asyncio.to_thread(hash_password, password, email)

    def change(tx: Transaction) -> PasswordSet:
        account = find_account(tx, email)
        done = replace_password(tx, account, password_hash, now_ms)
        sign_in.end_sessions(tx, account.id)
        audit_events.add(tx, AuditEvent(now_ms, by, "account.password", account.id, detail=done.detail))
        return done

    return await make_change(store, change)


def replace_password(
    tx: Transaction, account: Account, password_hash: str, now_ms: int, *, revokes_tokens: bool = True
) -> PasswordSet:
    """Set the hash and end all links; the caller ends sessions. API keys stay, because programs depend on them."""
    accounts.change(tx, account.id, password_hash=password_hash)
    sign_in.remove_links(tx, account.id)
    revoked = access_tokens.revoke_all(tx, account.id, now_ms) if revokes_tokens else 0
    active_keys, _ = keys.count(tx, account.id, now_ms, now_ms)
    return PasswordSet(account, revoked, access_tokens.count_active(tx, account.id, now_ms), active_keys)


def preferences_of(account: Account) -> Preferences:
    return copied(Preferences, account)


async def choose(
    store: Store, owner: Owner, account: Account, chosen: Preferences, usable_classes: Collection[str], now_ms: int
) -> Preferences:
    check_class(chosen.preferred_class)
    if chosen.preferred_class not in {*usable_classes, account.preferred_class}:
        raise ControlError(f"The class {chosen.preferred_class} is not offered here.")
    if chosen.theme not in get_args(Theme):
        raise ControlError("A theme is system, light or dark.")

    def change(tx: Transaction) -> None:
        accounts.change(tx, owner.account_id, **msgspec.structs.asdict(chosen))
        audit_events.add(tx, AuditEvent(now_ms, owner, "account.preferences", owner.account_id))

    await make_change(store, change)
    return chosen


def _say_count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}." if count else ""
