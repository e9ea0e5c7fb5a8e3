"""What `cadenza doctor` reports about one thing."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked: its state, what was found, and what to do if it is not well."""

    check: str
    state: Literal["ok", "warning", "fault"]
    found: str
    todo: str = ""
