"""Sign-up and invitations. With e-mail set up, a sign-up sends an invitation, so every address is verified.

Then nothing tells a visitor whether an address has an account. An account is created with its opening credit. The
one-time link of the first operator is an invitation too, and works even if sign-up is closed.
"""

from collections.abc import Callable

import msgspec

from cadenza.control.account.accounts import NewAccount, add_account, require_email
from cadenza.core.errors import ControlError
from cadenza.core.records import Operator
from cadenza.parts.site.sign_in.credentials import DeadLink, require_link
from cadenza.parts.site.sign_in.links import is_operator_link, make_link, take_link, take_operator_link
from cadenza.parts.site.sign_in.passwords import PasswordWork
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

TAKEN = "There is an account for this address already. Sign in, or reset its password."


class Invitation(msgspec.Struct, frozen=True):
    """A live invitation: the address that it is for, if it names one, and whether it makes the first operator."""

    secret: str
    email: str
    is_operator: bool = False


class SignUpChoice(msgspec.Struct, frozen=True):
    """What the reader of an invitation chose. The address counts only if the invitation names none."""

    email: str
    password: str


async def sign_up(
    store: Store, work: PasswordWork, email: str, password: str, credit_nano: int, now_ms: int
) -> Account:
    """Create an account whose address nobody has verified."""
    normal = require_email(email)
    new = NewAccount(normal, await work.hash(password, normal), credit_nano)
    return await _add(store, lambda tx: add_account(tx, new, None, now_ms))


async def find_invitation(store: Store, secret: str, now_ms: int) -> Invitation:
    """ControlError if there is none, or it has expired or was used."""
    if await is_operator_link(store, secret, now_ms):
        return Invitation(secret, "", is_operator=True)
    return Invitation(secret, (await require_link(store, secret, "invite", now_ms)).email)


async def join(
    store: Store, work: PasswordWork, invitation: Invitation, chosen: SignUpChoice, credit_nano: int, now_ms: int
) -> Account:
    """Create an account by an invitation. One that names an address proves that its reader has it."""
    email = invitation.email or require_email(chosen.email)
    new = NewAccount(
        email,
        await work.hash(chosen.password, email),
        credit_nano,
        verified_at=now_ms if invitation.email else None,
        is_operator=invitation.is_operator,
    )

    def add(tx: Transaction) -> Account:
        if invitation.is_operator:
            is_taken = take_operator_link(tx, invitation.secret, now_ms)
        else:
            is_taken = take_link(tx, invitation.secret, "invite", now_ms) is not None
        if not is_taken:
            raise DeadLink
        return add_account(tx, new, None, now_ms)

    return await _add(store, add)


async def invite(store: Store, email: str, by: Operator, now_ms: int) -> str:
    """Make an invitation, for one address or, if it is empty, for anybody. Returns the path of its link."""
    normal = require_email(email) if email else ""

    def make(tx: Transaction) -> str:
        audit_events.add(tx, AuditEvent(now_ms, by, "link.invite"))
        return make_link(tx, "invite", None, normal, now_ms)

    return await store.transact(make)


async def _add(store: Store, add: Callable[[Transaction], Account]) -> Account:
    try:
        return await store.transact(add)
    except StoreRefused:
        raise ControlError(TAKEN) from None
