"""What a check of the installation has found, for `cadenza doctor`, and what parts do for doctor and start."""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from cadenza.config import Settings
from cadenza.store.store import Store
from cadenza.store.tables.accounts import AccountsFound

State = Literal["ok", "warning", "fault"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked: its state, what was found, and what to do if it is not well."""

    check: str
    state: State
    found: str
    todo: str = ""

    @property
    def heading(self) -> str:
        """What it is printed under, if not at the top."""
        return ""


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a start of the service has found. `demo` is the address of an account that it has created."""

    settings: Settings
    store: Store
    base_url: str  # of the API, for a client on this machine
    accounts: AccountsFound
    demo: str | None
    at_terminal: bool  # anywhere else no secret is shown


Checks = Callable[[Settings], Awaitable[list[Check]]]  # of a part
Lines = list[tuple[str, str]]  # on the start screen: a name and a text
Screen = Callable[[StartFacts], Awaitable[Lines]]  # of a part
OfferModel = Callable[[], bool]  # asks whether to install the built-in model; True once it is
