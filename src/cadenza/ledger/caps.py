"""The rules of spend caps, pure: what a key may still spend, and which requests count towards its cap.

A request counts towards the calendar month (UTC) in which it started, and holds a part of the cap while it runs. The
sum of what was spent and what is held never exceeds the limit, except by requests that were already running when the
limit was set.
"""

from collections.abc import Mapping

import msgspec

from cadenza.core.records import Cap
from cadenza.core.spans import month_of


class CapStatus(msgspec.Struct, frozen=True):
    """A cap, what was spent of it in this period, and what is left beyond what running requests hold."""

    cap: Cap
    spent_nano: int
    left_nano: int


class CapUse(msgspec.Struct, frozen=True):
    """What a process holds of the caps of one account's keys."""

    kept_nano: Mapping[str, int]  # by key id, for the requests that keep running
    ending_nano: Mapping[str, int]  # by completion id, for the requests that end now


NO_CAP_USE = CapUse({}, {})


class CapState(msgspec.Struct):
    """The cap of one key while its account is locked."""

    key_id: str
    cap: Cap
    month: int  # the month of `spent_nano`
    spent_nano: int
    excused_nano: int  # what may be spent beyond the limit, by requests that were running when it was set
    held_nano: int  # for running requests, in all processes
    mine_nano: int  # the part of it in this process
    other_months_nano: dict[int, int] = {}  # spent in other months of this batch
    ending_nano: dict[str, int] = {}  # held for requests that end now

    def begin(self, kept_nano: int, ending_nano: Mapping[str, int]) -> None:
        """Hold what this process needs for its requests. Those that end now get no more than it held before."""
        assert kept_nano >= 0
        assert not self.ending_nano, "a cap begins a batch once"
        spare_nano = max(0, self.mine_nano - kept_nano)
        is_new = kept_nano > self.mine_nano  # the cap was removed and set again, or the store lost a commit
        for completion_id, amount_nano in ending_nano.items():
            self.ending_nano[completion_id] = min(amount_nano, spare_nano)
            spare_nano -= self.ending_nano[completion_id]
        self.hold(kept_nano + sum(self.ending_nano.values()) - self.mine_nano)
        if is_new:
            self._excuse()

    def release(self, completion_id: str) -> int:
        """Release what a request holds that ends now, and return the amount."""
        amount_nano = self.ending_nano.pop(completion_id, 0)
        self.hold(-amount_nano)
        return amount_nano

    def enter(self, started_at: int) -> None:
        """Begin a new month with the first request that started in it."""
        month = month_of(self.cap.period, started_at)
        if month > self.month:
            self.month, self.spent_nano = month, self.other_months_nano[month]
            self.excused_nano = 0
            self._excuse()

    def spent_in(self, started_at: int) -> int:
        """What the requests of the same period have cost."""
        month = month_of(self.cap.period, started_at)
        return self.spent_nano if month == self.month else self.other_months_nano[month]

    def left_nano(self, started_at: int) -> int:
        """What the key may spend beyond what is held; negative if its limit was lowered.

        By a clock that is behind, a request may begin in a month that is over: what it holds counts in this one too.
        """
        return self.cap.limit_nano - max(self.spent_nano, self.spent_in(started_at)) - self.held_nano

    def hold(self, amount_nano: int) -> None:
        self.held_nano += amount_nano
        self.mine_nano += amount_nano
        assert 0 <= self.mine_nano <= self.held_nano

    def charge(self, amount_nano: int, started_at: int, *, is_excused: bool) -> None:
        """Count what a request cost. It is excused if it was already running when the cap was set."""
        month = month_of(self.cap.period, started_at)
        if month == self.month:
            self.spent_nano += amount_nano
        else:
            self.other_months_nano[month] += amount_nano
        assert self.spent_in(started_at) >= 0
        if is_excused:
            self._excuse()

    def _excuse(self) -> None:
        self.excused_nano = max(self.excused_nano, self.spent_nano + self.held_nano - self.cap.limit_nano)
