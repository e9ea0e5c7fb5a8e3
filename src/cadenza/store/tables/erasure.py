"""Erases the personal data of an account irreversibly. Its row stays, without an address, for its entries and usage.

It is one transaction. The triggers of the audit log allow changes only while the account is marked as erased and still
has its address, so the order of the steps matters.
"""

import secrets

from sqlalchemy import and_, bindparam, case, delete, func, select, update

from cadenza.store.schema import (
    access_tokens,
    accounts,
    audit_events,
    buyers,
    idempotency,
    keys,
    links,
    notes,
    passkeys,
    recovery_codes,
    request_details,
    sessions,
    totp,
    usage,
)
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction, change_row
from cadenza.store.tables.accounts import Account

ERASED_PREFIX = "erased------"
FORGOTTEN = {
    "password_hash": "",
    "preferred_class": "forte",
    "is_operator": False,
    "verified_at": None,
    "theme": "system",
    "uses_search": True,
    "uses_memory": True,
    "shows_cost": False,
    "low_balance_nano": 0,
    "low_noticed_at": None,
    "note_count": 0,
}
_IS_OWN_ADDRESS = and_(
    audit_events.c.actor.contains("@"),
    audit_events.c.actor.not_in(select(accounts.c.email).where(accounts.c.id != bindparam("account"))),
)
CLEAR_OWN_AUDIT_EVENTS = Statement(
    update(audit_events)
    .where(audit_events.c.account_id == bindparam("account"))
    .values(actor=case((_IS_OWN_ADDRESS, audit_events.c.account_id), else_=audit_events.c.actor), detail="")
)
CLEAR_OTHER_AUDIT_EVENTS = Statement(
    update(audit_events).where(audit_events.c.actor == bindparam("address")).values(actor=bindparam("account"))
)
REMOVE_LINKS = Statement(delete(links).where(links.c.email == bindparam("address")))
REMOVE_OWNED = [
    Statement(delete(table).where(table.c.account_id == bindparam("account")))
    for table in (
        sessions,
        access_tokens,
        links,
        totp,
        recovery_codes,
        passkeys,
        notes,
        idempotency,
        buyers,
        request_details,
    )
]
FORGET_DIGESTS = Statement(
    update(usage)
    .where(usage.c.account_id == bindparam("account"), usage.c.idempotency_digest.is_not(None))
    .values(idempotency_digest=None)
)
KEY_IDS = Statement(select(keys.c.id).where(keys.c.account_id == bindparam("account")))
CLEAR_KEY = Statement(
    update(keys)
    .where(keys.c.id == bindparam("key"))
    .values(
        name="",
        prefix=ERASED_PREFIX,
        digest=bindparam("random_digest"),
        revoked_at=func.coalesce(keys.c.revoked_at, bindparam("now")),
        last_used_at=None,
    )
)


def erase(tx: Transaction, account: Account, now_ms: int) -> None:
    """Erase all personal data, and end every key and session. The account must have no money and be locked."""
    tx.overwrite_deleted()
    change_row(tx, accounts, account.id, erased_at=now_ms, suspended_at=now_ms, **FORGOTTEN)
    tx.change(CLEAR_OWN_AUDIT_EVENTS, {"account": account.id})
    tx.change(CLEAR_OTHER_AUDIT_EVENTS, {"account": account.id, "address": account.email})
    tx.change(REMOVE_LINKS, {"address": account.email})
    for remove in REMOVE_OWNED:
        tx.change(remove, {"account": account.id})
    tx.change(FORGET_DIGESTS, {"account": account.id})
    for (key_id,) in tx.rows(KEY_IDS, {"account": account.id}):
        tx.change(CLEAR_KEY, {"key": key_id, "random_digest": secrets.token_bytes(32), "now": now_ms})
    change_row(tx, accounts, account.id, email=placeholder(account.id))


def placeholder(account_id: str) -> str:
    """What replaces the address. It is not an address, so nobody can sign in with it."""
    return f"erased-{account_id}".lower()
