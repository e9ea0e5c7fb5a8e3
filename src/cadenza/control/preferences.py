"""What owners choose for their account. It counts from the next request on, in every process."""

from collections.abc import Collection
from typing import get_args

from cadenza.control.accounts import check_class
from cadenza.control.errors import ControlError
from cadenza.store import accounts, acts
from cadenza.store.accounts import Account, Preferences, Theme
from cadenza.store.acts import Act
from cadenza.store.changes import make_change
from cadenza.store.store import Store, Transaction


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
        acts.add(tx, Act(now_ms, account.email, "account.preferences", account.id))

    await make_change(store, change)
    return chosen
