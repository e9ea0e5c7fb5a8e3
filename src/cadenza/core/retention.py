"""How long things are kept: the section [retention] of the config, and its defaults."""

import msgspec

from cadenza.core.spans import DAY_MS

SESSION_DAYS_MAX = 365
AUDIT_EVENT_DAYS_MIN = 30
USAGE_DAYS_MIN = 32  # a month and a day: the month of a spend cap, and what operators look at


class RetentionLimits(msgspec.Struct, frozen=True):
    """None: it is kept for as long as the account, or for ever."""

    session_days: int = 30  # after sign-in, whatever is done with it
    session_idle_days: int = 7  # without use
    audit_event_days: int | None = None  # of accounts; those of classes and of the ledger are kept
    usage_days: int | None = None  # then requests are rolled up by day
    search_result_s: int = 300  # in memory
    page_s: int = 600  # in memory

    @property
    def session_ms(self) -> int:
        return self.session_days * DAY_MS

    @property
    def session_idle_ms(self) -> int:
        return self.session_idle_days * DAY_MS


USUAL_LIMITS = RetentionLimits()
