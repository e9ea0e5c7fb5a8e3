"""How long things are kept: the section [retention] of the config, and its defaults."""

from collections.abc import Iterable
from typing import Annotated

from cadenza.core.config_keys import ConfigTable, Like, whole
from cadenza.core.spans import DAY_MS

SESSION_DAYS_MAX = 365
USAGE_DAYS_MIN = 32  # a month and a day: the month of a spend cap, and what operators look at
DAYS_MAX = 36_500


class RetentionLimits(ConfigTable, frozen=True):
    """None: it is kept for as long as the account, or for ever."""

    session_days: Annotated[int, whole(1, SESSION_DAYS_MAX), "how long a browser stays signed in, at most"] = 30
    session_idle_days: Annotated[int, whole(1, SESSION_DAYS_MAX), "how long without being used"] = 7
    audit_event_days: Annotated[
        int | None, whole(30, DAYS_MAX), Like(365), "of accounts; without it, audit events are kept"
    ] = None
    usage_days: Annotated[
        int | None,
        whole(USAGE_DAYS_MIN, DAYS_MAX),
        Like(400),
        "older requests are removed, and their sums by day stay; without it, all are kept",
    ] = None
    search_result_s: Annotated[int, whole(0, 3600), "results of searches, in memory; 0: not at all"] = 300
    page_s: Annotated[int, whole(0, 3600), "pages that search has read, in memory; 0: not at all"] = 600

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if self.session_idle_days > self.session_days:
            yield "session_idle_days", f"must not be above session_days, which is {self.session_days}"

    @property
    def session_ms(self) -> int:
        return self.session_days * DAY_MS

    @property
    def session_idle_ms(self) -> int:
        return self.session_idle_days * DAY_MS


USUAL_LIMITS = RetentionLimits()
