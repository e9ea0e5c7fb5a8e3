"""One-time links: they prove that somebody reads an address or was invited, or make the first operator.

The secret is in the link, its digest in the store. A link works once, for one purpose, until it expires. Opening it
changes nothing: the page behind it has a button, because mail programs open links to check them.

`cadenza serve` at a terminal, and `cadenza account link operator`, print the link of the first operator while there is
none. A store has one at a time: each new one replaces it. Its secret begins with the time of expiry, and the digest
covers both.
"""

import hashlib
import secrets

from cadenza.control.account.accounts import find_account
from cadenza.core.records import Operator
from cadenza.core.spans import DAY_MS
from cadenza.parts.site.tables import links, site_secrets
from cadenza.parts.site.tables.links import Link, LinkKind
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.audit_events import AuditEvent

HOUR_MS = 60 * 60 * 1000
LIFETIMES_MS: dict[LinkKind, int] = {
    "verify": 3 * DAY_MS,
    "reset": HOUR_MS,
    "change_email": DAY_MS,
    "invite": 7 * DAY_MS,
}
PATHS: dict[LinkKind, str] = {
    "verify": "/verify/",
    "reset": "/reset/",
    "change_email": "/new-address/",
    "invite": "/join/",
}


def make_link(tx: Transaction, kind: LinkKind, account_id: str | None, email: str, now_ms: int) -> str:
    """Make a link and return its path. Earlier links of the account for the same purpose stop working."""
    links.forget_expired(tx, now_ms)
    if account_id is not None:
        links.remove_kind(tx, account_id, kind)
    secret = secrets.token_urlsafe(32)
    links.add(tx, Link(link_digest(secret), kind, account_id, email, now_ms, now_ms + LIFETIMES_MS[kind]))
    return PATHS[kind] + secret


async def find_link(store: Store, secret: str, kind: LinkKind, now_ms: int) -> Link | None:
    return await links.get(store, link_digest(secret), kind, now_ms)


def take_link(tx: Transaction, secret: str, kind: LinkKind, now_ms: int) -> Link | None:
    return links.take(tx, link_digest(secret), kind, now_ms)


async def print_link(store: Store, email: str, kind: LinkKind, by: Operator, now_ms: int) -> str:
    """Make a link for an operator to hand over. Returns its path."""

    def make(tx: Transaction) -> str:
        account = find_account(tx, email)
        audit_events.add(tx, AuditEvent(now_ms, by, f"link.{kind}", account.id))
        return make_link(tx, kind, account.id, account.email, now_ms)

    return await store.transact(make)


def link_digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


async def make_operator_link(store: Store, now_ms: int) -> str | None:
    """Make the link and return its path; None if there is an operator. Earlier links stop working."""
    secret = f"{now_ms + DAY_MS:x}.{secrets.token_urlsafe(32)}"

    def make(tx: Transaction) -> bool:
        if accounts.lock_first_operator(tx):
            return False
        site_secrets.replace_operator_link(tx, link_digest(secret))
        return True

    return PATHS["invite"] + secret if await store.transact(make) else None


async def is_operator_link(store: Store, secret: str, now_ms: int) -> bool:
    return _is_in_time(secret, now_ms) and await site_secrets.is_operator_link(store, link_digest(secret))


def take_operator_link(tx: Transaction, secret: str, now_ms: int) -> bool:
    """Use the link. False if it was used before, or there is an operator meanwhile."""
    has_operator = accounts.lock_first_operator(tx)
    return _is_in_time(secret, now_ms) and site_secrets.take_operator_link(tx, link_digest(secret)) and not has_operator


def _is_in_time(secret: str, now_ms: int) -> bool:
    try:
        return now_ms < int(secret.partition(".")[0], 16)
    except ValueError:
        return False
