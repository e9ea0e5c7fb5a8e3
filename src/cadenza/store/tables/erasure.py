"""Erases the personal data of an account irreversibly. Its row stays, without an address, for its entries and usage.

It is one transaction. The triggers of the audit log allow changes only while the account is marked as erased and still
has its address, so the order of the steps matters.
"""

import secrets

from sqlalchemy import and_, bindparam, case, delete, func, select, update

from cadenza.store import schema
from cadenza.store.schema import accounts, audit_events, idempotency, keys, notes, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction
from cadenza.store.tables import links, second_factors, sessions
from cadenza.store.tables.accounts import Account

ERASED_PREFIX = "erased------"
_OF_ID = accounts.c.id == bindparam("account")
MARK = Statement(
    update(accounts)
    .where(_OF_ID)
    .values(
        erased_at=bindparam("now"),
        suspended_at=bindparam("now"),
        password_hash="",
        preferred_class="forte",
        is_operator=False,
        verified_at=None,
        theme="system",
        uses_search=True,
        uses_memory=True,
        low_balance_nano=0,
        low_noticed_at=None,
        note_count=0,
    )
)
RENAME = Statement(update(accounts).where(_OF_ID).values(email=bindparam("placeholder")))
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
REMOVE_LINKS = Statement(delete(schema.links).where(schema.links.c.email == bindparam("address")))
REMOVE_NOTES = Statement(delete(notes).where(notes.c.account_id == bindparam("account")))
FORGET_REQUESTS = Statement(delete(idempotency).where(idempotency.c.account_id == bindparam("account")))
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
    tx.change(MARK, {"account": account.id, "now": now_ms})
    tx.change(CLEAR_OWN_AUDIT_EVENTS, {"account": account.id})
    tx.change(CLEAR_OTHER_AUDIT_EVENTS, {"account": account.id, "address": account.email})
    sessions.remove_all(tx, account.id)
    links.remove_all(tx, account.id)
    tx.change(REMOVE_LINKS, {"address": account.email})
    second_factors.remove_totp(tx, account.id)
    second_factors.remove_codes(tx, account.id)
    second_factors.remove_passkeys(tx, account.id)
    tx.change(REMOVE_NOTES, {"account": account.id})
    tx.change(FORGET_REQUESTS, {"account": account.id})
    tx.change(FORGET_DIGESTS, {"account": account.id})
    for (key_id,) in tx.rows(KEY_IDS, {"account": account.id}):
        tx.change(CLEAR_KEY, {"key": key_id, "random_digest": secrets.token_bytes(32), "now": now_ms})
    tx.change(RENAME, {"account": account.id, "placeholder": placeholder(account.id)})


def placeholder(account_id: str) -> str:
    """What replaces the address. It is not an address, so nobody can sign in with it."""
    return f"erased-{account_id}".lower()
