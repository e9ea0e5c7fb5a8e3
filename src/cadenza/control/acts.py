"""Reads the audit trail."""

from cadenza.control.accounts import get_account
from cadenza.store import acts
from cadenza.store.acts import NEWEST, WrittenAct
from cadenza.store.store import Store

PAGE = 50


async def list_acts(
    store: Store, email: str | None = None, before: int = NEWEST, count: int = PAGE
) -> list[WrittenAct]:
    """The newest acts, newest first: of the account with this address, or of all. `before` is the last id seen."""
    account_id = (await get_account(store, email)).id if email else None
    return await acts.list_newest(store, account_id, before, count)
