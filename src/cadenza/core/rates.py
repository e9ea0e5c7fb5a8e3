"""Rate limits that smooth bursts: the generic cell rate algorithm (GCRA) in whole nanoseconds. Times are the caller's.

The state of a key is one number: the time at which its whole burst is available again. A refused request takes nothing,
so the wait in its reply is exact.
"""

import math
from functools import lru_cache

import msgspec

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
STEP_NS_MAX = 2**62
RETRIES_PER_REQUEST = 0.2  # of all requests together, in the long run


class Rate(msgspec.Struct, frozen=True):
    """Requests per second in the long run, and how many may come at once after a pause."""

    per_s: float
    burst: int

    @property
    def step_ns(self) -> int:
        """The time after which one more request is available."""
        return _step_ns(self.per_s)


class Limits(msgspec.Struct, frozen=True):
    """The rate of every key without a rate of its own, and how many chats may be in flight."""

    rate: Rate
    concurrency: int


class Ticket(msgspec.Struct, frozen=True):
    """The result of one request against a rate."""

    is_granted: bool
    limit: int
    remaining: int
    reset_ns: int  # until the whole burst is available again
    wait_ns: int = 0  # until a request will be granted; zero if this one was

    @property
    def wait_s(self) -> float:
        """Rounded up to whole milliseconds, so that a retry after it is not too early."""
        return math.ceil(self.wait_ns / NS_PER_MS) / 1000


@lru_cache(maxsize=1024)
def _step_ns(per_s: float) -> int:
    return max(1, round(min(NS_PER_S / per_s, STEP_NS_MAX)))


def take_ticket(whole_at_ns: int, now_ns: int, rate: Rate) -> tuple[int, Ticket]:
    """The time at which the whole burst is available again after this request, and the request's ticket."""
    step_ns = _step_ns(rate.per_s)
    span_ns = step_ns * rate.burst
    reset_ns = whole_at_ns - now_ns
    if reset_ns < 0:
        reset_ns = 0
    elif reset_ns > span_ns:  # a debt from an earlier, slower rate is forgiven
        reset_ns = span_ns
    spare_ns = span_ns - reset_ns - step_ns  # what the burst has left after this request
    if spare_ns < 0:
        ticket = Ticket(is_granted=False, limit=rate.burst, remaining=0, reset_ns=reset_ns, wait_ns=-spare_ns)
    else:
        reset_ns += step_ns
        ticket = Ticket(is_granted=True, limit=rate.burst, remaining=spare_ns // step_ns, reset_ns=reset_ns)
    return now_ns + reset_ns, ticket


class RetryBudget:
    """How many retries are left: each request earns a fifth of one, up to a maximum."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._left = self._most

    def change_most(self, most: int) -> None:
        self._most = float(most)
        self._left = min(self._left, self._most)

    def earn(self) -> None:
        if self._left < self._most:
            self._left = min(self._most, self._left + RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True
