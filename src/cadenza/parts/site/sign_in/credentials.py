"""How owners change their password and their e-mail address, by a form or by a link.

A new password ends every other session and every link, and may revoke the access tokens; a reset always does. A new
address takes effect when the link that was sent to it is opened; without e-mail it takes effect at once and counts as
not verified.
"""

from collections.abc import Callable

import msgspec

from cadenza.control.account.accounts import require_email
from cadenza.core.errors import ControlError
from cadenza.core.records import Owner
from cadenza.fleet.changes import make_change
from cadenza.parts.site.accounts import PasswordSet, replace_password
from cadenza.parts.site.sign_in.links import find_link, make_link, take_link
from cadenza.parts.site.sign_in.passwords import PasswordWork
from cadenza.parts.site.sign_in.sessions import SignedIn, rotate_session
from cadenza.parts.site.tables.links import Link, LinkKind
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import accounts, audit_events, sign_in
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

TAKEN = "Another account has this e-mail address."


class DeadLink(ControlError):
    """The link works no longer, or not for this account."""

    def __init__(self) -> None:
        super().__init__("This link was used before, has expired, or is not complete. Ask for a new one.")


async def change_password(
    store: Store, signed_in: SignedIn, password_hash: str, owner: Owner, now_ms: int, *, revokes_tokens: bool
) -> tuple[str | None, PasswordSet]:
    """Set a new password after the old one was checked. Returns this session's new secret; None if it has ended."""
    account, session = signed_in.account, signed_in.session

    def change(tx: Transaction) -> tuple[str | None, PasswordSet]:
        done = replace_password(tx, account, password_hash, now_ms, revokes_tokens=revokes_tokens)
        sign_in.end_sessions(tx, account.id, session.digest)
        audit_events.add(tx, AuditEvent(now_ms, owner, "account.password", account.id, detail=done.detail))
        return rotate_session(tx, session, now_ms, is_proof=True), done

    return await store.transact(change)


async def reset_password(store: Store, work: PasswordWork, secret: str, password: str, now_ms: int) -> PasswordSet:
    """Use a link to set a password. Every session and access token ends. The second factor stays."""
    link = await require_link(store, secret, "reset", now_ms)  # first, because a hash is costly
    password_hash = await work.hash(password, link.email)

    def reset(tx: Transaction) -> PasswordSet:
        account = _use(tx, secret, "reset", now_ms)[1]
        done = replace_password(tx, account, password_hash, now_ms)
        sign_in.end_sessions(tx, account.id)
        event = AuditEvent(now_ms, account.owner, "account.reset_password", account.id, detail=done.detail)
        audit_events.add(tx, event)
        return done

    return await store.transact(reset)


async def verify_email(store: Store, secret: str, now_ms: int) -> Account:
    """Use a link to prove that its reader has the address of the account."""

    def verify(tx: Transaction) -> Account:
        link, account = _use(tx, secret, "verify", now_ms)
        if link.email != account.email:
            raise DeadLink
        accounts.change(tx, account.id, verified_at=now_ms)
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "account.verify", account.id))
        return account

    return await store.transact(verify)


async def begin_email_change(store: Store, account: Account, email: str, now_ms: int) -> str:
    """Make the link for the new address, and return its path. It does not tell whether another account has it."""
    normal = require_email(email)

    def begin(tx: Transaction) -> str:
        audit_events.add(tx, AuditEvent(now_ms, account.owner, "account.ask_email", account.id))
        return make_link(tx, "change_email", account.id, normal, now_ms)

    return await store.transact(begin)


async def finish_email_change(store: Store, account: Account, secret: str, now_ms: int) -> Account:
    """Use the link that was sent to the new address. It works only for the account that asked for it."""

    def finish(tx: Transaction) -> Account:
        link, owner = _use(tx, secret, "change_email", now_ms)
        if owner.id != account.id:
            raise DeadLink
        return _set_email(tx, owner, link.email, now_ms, now_ms)

    return await _change_email(store, finish)


async def change_email_at_once(store: Store, account: Account, email: str, now_ms: int) -> Account:
    """Without e-mail the address cannot be verified, so it counts as not verified."""
    normal = require_email(email)
    return await _change_email(store, lambda tx: _set_email(tx, account, normal, None, now_ms))


async def require_link(store: Store, secret: str, kind: LinkKind, now_ms: int) -> Link:
    link = await find_link(store, secret, kind, now_ms)
    if link is None:
        raise DeadLink
    return link


async def _change_email(store: Store, work: Callable[[Transaction], Account]) -> Account:
    try:
        return await make_change(store, work)
    except StoreRefused:
        raise ControlError(TAKEN) from None


def _set_email(tx: Transaction, account: Account, email: str, verified_at: int | None, now_ms: int) -> Account:
    accounts.change(tx, account.id, email=email, verified_at=verified_at)
    sign_in.remove_links(tx, account.id)
    audit_events.add(tx, AuditEvent(now_ms, account.owner, "account.email", account.id))
    return msgspec.structs.replace(account, email=email, verified_at=verified_at)


def _use(tx: Transaction, secret: str, kind: LinkKind, now_ms: int) -> tuple[Link, Account]:
    link = take_link(tx, secret, kind, now_ms)
    account = accounts.find(tx, link.account_id) if link and link.account_id else None
    if link is None or account is None or account.suspended_at is not None:
        raise DeadLink
    return link, account
