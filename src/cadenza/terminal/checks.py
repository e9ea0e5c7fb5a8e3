"""What a check of the installation has found, for `cadenza doctor`, and what parts do for doctor and start."""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from cadenza.config import Settings

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


Checks = Callable[[Settings], Awaitable[list[Check]]]  # of a part
Screen = Callable[[Settings], list[tuple[str, str]]]  # lines of a part on the start screen: a name and a text
OfferModel = Callable[[], bool]  # asks whether to install the built-in model; True once it is
