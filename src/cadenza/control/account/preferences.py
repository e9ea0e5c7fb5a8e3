"""What owners choose for their account. It counts from the next request on, in every process."""

from collections.abc import Collection
from typing import get_args

from cadenza.control.account.accounts import check_class
from cadenza.core.errors import ControlError
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.accounts import Account, Preferences, Theme
from cadenza.store.tables.audit_events import AuditEvent


def preferences_of(account: Account) -> Preferences:
    return Preferences(account.preferred_class, account.theme, account.uses_search, account.uses_memory)


async def choose(
    store: Store, account: Account, chosen: Preferences, usable_classes: Collection[str], now_ms: int
) -> Preferences:
    check_class(chosen.preferred_class)
    if chosen.preferred_class not in {*usable_classes, account.preferred_class}:
        raise ControlError(f"The class {chosen.preferred_class} is not offered here.")
    if chosen.theme not in get_args(Theme):
        raise ControlError("A theme is system, light or dark.")

    def change(tx: Transaction) -> None:
        accounts.set_preferences(tx, account.id, chosen)
        audit_events.add(tx, AuditEvent(now_ms, account.email, "account.preferences", account.id))

    await make_change(store, change)
    return chosen
