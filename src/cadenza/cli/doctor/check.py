"""What `cadenza doctor` reports about one thing."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked: its state, what was found, and what to do if it is not well."""

    check: str
    state: Literal["ok", "warning", "fault"]
    found: str
    todo: str = ""

    @property
    def heading(self) -> str:
        """What it is printed under, if not at the top."""
        return ""


class TrialCheck(Check, frozen=True, kw_only=True):
    """One finding of a trial."""

    provider: str
    model: str

    @property
    def heading(self) -> str:
        return f"{self.provider}: {self.model}"
