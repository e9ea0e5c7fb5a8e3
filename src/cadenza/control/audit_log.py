"""Reads the audit log, for operators."""

from cadenza.control.account.accounts import get_account
from cadenza.store.store import Store
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import NEWEST, LoggedEvent

PAGE = 50


async def list_audit_events(
    store: Store, email: str | None = None, before: int = NEWEST, count: int = PAGE
) -> list[LoggedEvent]:
    """The newest events, newest first: of the account with this address, or of all. `before` is the last id seen."""
    account_id = (await get_account(store, email)).id if email else None
    return await audit_events.list_newest(store, account_id, before, count)
