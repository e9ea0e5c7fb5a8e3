"""What an operator may do to the keys of any account. It is written to the audit log in the same transaction."""

from cadenza.core.errors import ControlError
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, keys, operators
from cadenza.store.tables.audit_events import AuditEvent


async def revoke_any_key(store: Store, key_id: str, by: str, now_ms: int) -> bool:
    """Revoke a key of any account. False if it was revoked before."""

    def revoke(tx: Transaction) -> bool:
        key = operators.find_key(tx, key_id)
        if key is None:
            raise ControlError("There is no such key.")
        if key.origin == "web":
            raise ControlError("This key belongs to the web chat and is known to nobody. Suspend the account instead.")
        is_first = keys.revoke(tx, key_id, now_ms)
        if is_first:
            audit_events.add(tx, AuditEvent(now_ms, by, "key.revoke", key.account_id, key_id))
        return is_first

    return await make_change(store, revoke)
