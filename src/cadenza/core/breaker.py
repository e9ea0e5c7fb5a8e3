"""A circuit breaker: of one route to a provider, or of one search engine.

    state      requests let through                              next
    CLOSED     all                                               OPEN after some faults in a row, a lasting one, or on a
                                                                 Retry-After
    OPEN       none; one at a time where no other route is left  HALF_OPEN when its time is over
    HALF_OPEN  one at a time, as a trial                         CLOSED by an answer; OPEN by a fault or a Retry-After

After a Retry-After alone, HALF_OPEN becomes OPEN only by the last of these faults in a row. Each time it opens, it
stays open twice as long as the time before, unless there was an answer in between. A trial that hangs keeps the next
one waiting for a few seconds only. Times are the caller's.
"""

import math
from enum import Enum, auto

import msgspec

FAULTS_TO_OPEN = 5
OPEN_S_MIN = 1.0
OPEN_S_MAX = 30.0
TRIAL_S = 5.0  # after this long without an answer, another trial may begin
DOUBLINGS_MAX = 10
NEVER_S = -math.inf


class BreakerState(Enum):
    """See the module's table."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


CLOSED, OPEN, HALF_OPEN = BreakerState  # as names: Python 3.11 is slow to look up BreakerState.X


class BreakerLimits(msgspec.Struct, frozen=True):
    """When a breaker opens, and for how long. The defaults are those of a route."""

    faults_to_open: int = FAULTS_TO_OPEN
    open_s_min: float = OPEN_S_MIN
    open_s_max: float = OPEN_S_MAX
    trial_s: float = TRIAL_S


class Breaker:
    """Counts faults in a row, separately before the first token and after it."""

    def __init__(self, now_s: float, limits: BreakerLimits | None = None) -> None:
        self.is_busy = False  # the upstream has no capacity; it did not fail
        self._limits = limits or BreakerLimits()
        self._trial_until_s = NEVER_S  # a trial runs until then
        self.reset(now_s)

    def reset(self, now_s: float) -> None:
        """As if nothing had ever gone wrong. A trial that runs stays counted."""
        self._faults_before_token = 0
        self._faults_after_token = 0
        self._times_opened = 0  # in a row
        self._opened_s = now_s
        self.open_until_s = NEVER_S  # while it is closed

    def state(self, now_s: float) -> BreakerState:
        if self.open_until_s == NEVER_S:
            return CLOSED
        return OPEN if self.open_until_s > now_s else HALF_OPEN

    def open_s(self, now_s: float) -> float:
        """How much longer it stays open."""
        return max(0.0, self.open_until_s - now_s)

    def begin_trial(self, now_s: float) -> bool:
        """Whether this request may be the trial."""
        if self._trial_until_s > now_s:
            return False
        self._trial_until_s = now_s + self._limits.trial_s
        return True

    def end_trial(self) -> None:
        self._trial_until_s = NEVER_S

    def record_response(self, started_s: float) -> None:
        """A request that was sent before the breaker opened does not close it."""
        if started_s >= self._opened_s:
            self._faults_before_token = self._times_opened = 0
            self.open_until_s = NEVER_S

    def record_finish(self) -> None:
        self._faults_after_token = 0

    def record_fault(
        self, started_s: float, now_s: float, *, has_answered: bool, is_busy: bool, is_lasting: bool = False
    ) -> bool:
        """Whether the breaker opened. Requests sent before it opened do not prolong that when they fail too."""
        if started_s < self._opened_s:
            return False
        if has_answered:
            self._faults_after_token += 1
        else:
            self._faults_before_token += 1
        limits = self._limits
        if not is_lasting and max(self._faults_before_token, self._faults_after_token) < limits.faults_to_open:
            return False
        open_s = min(limits.open_s_max, limits.open_s_min * 2 ** min(self._times_opened, DOUBLINGS_MAX))
        if is_lasting:
            open_s = limits.open_s_max
        self.open(now_s, open_s, is_busy=is_busy)
        self._times_opened += 1
        return True

    def open(self, now_s: float, open_s: float, *, is_busy: bool) -> None:
        is_down = self.state(now_s) is OPEN and not self.is_busy
        self.is_busy = is_busy and not is_down
        self._opened_s = now_s
        self.open_until_s = max(self.open_until_s, now_s + open_s)
