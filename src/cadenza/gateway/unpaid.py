"""The CPU time that accounts have taken for nothing: of bodies that were refused, and of prompts counted for free.

It is counted for an account over all of its keys. Beyond a budget, which refills, its requests get 429 before their
bodies are read. Each process has its own count. An account whose bodies are served is not in the table.
"""

import time
from collections.abc import Callable

from cadenza.core.bounded_cache import BoundedCache
from cadenza.core.errors import RateLimited
from cadenza.observe import Metrics

BURST_S, PER_S = 10.0, 0.1  # of CPU time: at once after a pause, and then in each second
REQUEST_S = 0.0002  # for what a request takes besides its body
ACCOUNTS_MAX = 10_000  # are remembered
SPENT = (
    "Requests of this account that were refused, or counted for free, have used up their CPU time. Correct them, and "
    "retry after the time in the retry-after-ms header."
)


class UnpaidWork:
    """By account: the time at which its whole budget is available again."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._whole_at_s: BoundedCache[str, float] = BoundedCache(ACCOUNTS_MAX)

    def check(self, account_id: str) -> None:
        """429 for an account that has used up its budget."""
        whole_at_s = self._whole_at_s.get(account_id)
        if whole_at_s is not None and (wait_s := whole_at_s - self._clock() - BURST_S / PER_S) > 0:
            self._metrics.refused.labels("unpaid").inc()
            raise RateLimited(SPENT, wait_s, "unpaid")

    def charge(self, account_id: str, cpu_s: float) -> None:
        """A request took this much CPU time for its body, and was not paid for."""
        now_s = self._clock()
        whole_at_s = max(self._whole_at_s.get(account_id, now_s), now_s)
        self._whole_at_s.put(account_id, whole_at_s + (REQUEST_S + cpu_s) / PER_S)
