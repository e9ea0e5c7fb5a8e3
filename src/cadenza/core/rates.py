"""Rates that smooth bursts: the generic cell rate algorithm (GCRA), in whole nanoseconds. The clock is the caller's.

All that is kept of a key is one number: the moment at which its burst will be whole again. A request that is refused
takes nothing, so the wait that it is told is the true one.
"""

import math
from functools import lru_cache

import msgspec

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
STEP_NS_MAX = 2**62


class Rate(msgspec.Struct, frozen=True):
    """So many requests a second in the long run, and so many at once after a rest."""

    per_s: float
    burst: int

    @property
    def step_ns(self) -> int:
        """The time after which one more request may come."""
        return _step_ns(self.per_s)


class Ticket(msgspec.Struct, frozen=True):
    """What a rate says to one request."""

    is_granted: bool
    limit: int
    remaining: int
    reset_ns: int  # until the whole burst is there again
    wait_ns: int = 0  # until a request will be granted; nothing where this one was

    @property
    def wait_s(self) -> float:
        """Rounded up to whole milliseconds: whoever waits so long does not come too early."""
        return math.ceil(self.wait_ns / NS_PER_MS) / 1000


@lru_cache(maxsize=1024)
def _step_ns(per_s: float) -> int:
    return max(1, round(min(NS_PER_S / per_s, STEP_NS_MAX)))


def take_ticket(whole_at_ns: int, now_ns: int, rate: Rate) -> tuple[int, Ticket]:
    """When the burst will be whole again after this request, and what the request is told."""
    step_ns = rate.step_ns
    span_ns = step_ns * rate.burst
    whole_at_ns = min(max(whole_at_ns, now_ns), now_ns + span_ns)  # a debt of an earlier, slower rate is forgiven
    wait_ns = whole_at_ns + step_ns - span_ns - now_ns
    if wait_ns > 0:
        return whole_at_ns, Ticket(
            is_granted=False, limit=rate.burst, remaining=0, reset_ns=whole_at_ns - now_ns, wait_ns=wait_ns
        )
    whole_at_ns += step_ns
    reset_ns = whole_at_ns - now_ns
    return whole_at_ns, Ticket(
        is_granted=True, limit=rate.burst, remaining=(span_ns - reset_ns) // step_ns, reset_ns=reset_ns
    )
