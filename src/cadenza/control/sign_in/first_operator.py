"""The first operator: made by the command line, or by the one-time link that `cadenza serve` prints.

There is a link only while no account is an operator's. A store has one at a time: each start replaces it. The secret
begins with the time until which it works, and only the digest of the whole is stored, so that neither can be changed.
"""

import secrets

from cadenza.control.sign_in.links import DAY_MS, link_digest
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, operator_link

PATH = "/join/"
LIFETIME_MS = DAY_MS


async def make_operator_link(store: Store, now_ms: int) -> str | None:
    """Make the link and return its path; None if there is an operator. Earlier links stop working."""
    secret = f"{now_ms + LIFETIME_MS:x}.{secrets.token_urlsafe(32)}"

    def make(tx: Transaction) -> bool:
        if accounts.lock_first_operator(tx):
            return False
        operator_link.replace(tx, link_digest(secret))
        return True

    return PATH + secret if await store.transact(make) else None


async def is_operator_link(store: Store, secret: str, now_ms: int) -> bool:
    return _is_in_time(secret, now_ms) and await operator_link.is_live(store, link_digest(secret))


def take_operator_link(tx: Transaction, secret: str, now_ms: int) -> bool:
    """Use the link. False if it was used before, or there is an operator meanwhile."""
    has_operator = accounts.lock_first_operator(tx)
    return _is_in_time(secret, now_ms) and operator_link.take(tx, link_digest(secret)) and not has_operator


def _is_in_time(secret: str, now_ms: int) -> bool:
    try:
        return now_ms < int(secret.partition(".")[0], 16)
    except ValueError:
        return False
