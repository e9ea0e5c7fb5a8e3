"""CPU time budgets of the owners of one child process: token buckets, charged with the measured time of their tasks.

A full bucket has `burst_s` seconds, and `per_s` are added in each second. An owner whose bucket is empty is refused,
but only while others use the same child: a single owner may use all of it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

RECENT_S = 60.0  # an owner with a task within this time counts as a user of the child


class CpuBudget(msgspec.Struct, frozen=True):
    """The CPU time of one owner: the burst, and the average in each second."""

    burst_s: float = 10.0
    per_s: float = 0.25


class _Bucket(NamedTuple):
    left_s: float
    at_s: float  # when `left_s` was computed
    task_s: float  # when its owner had its last task


class CpuBudgets:
    """The budgets of all owners of one child. An owner that has been idle for long is forgotten: its budget is full."""

    def __init__(self, budget: CpuBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}  # least recently used first
        self._forget_s = max(RECENT_S, 2 * budget.burst_s / budget.per_s)

    def __len__(self) -> int:
        return len(self._buckets)

    def left(self, owner: str) -> float:
        """In seconds; below zero for an owner that has used more than it had."""
        bucket = self._buckets.get(owner)
        if bucket is None:
            return self._budget.burst_s
        return min(self._budget.burst_s, bucket.left_s + (self._clock() - bucket.at_s) * self._budget.per_s)

    def note(self, owner: str) -> None:
        """The owner has a task."""
        now_s = self._clock()
        self._keep(owner, _Bucket(self.left(owner), now_s, now_s))

    def charge(self, owner: str, cpu_s: float) -> None:
        """Subtract CPU time from the bucket. It falls to minus one burst at most, so that every wait is bounded."""
        left_s, bucket = self.left(owner), self._buckets.get(owner)
        task_s = bucket.task_s if bucket else -RECENT_S
        self._keep(owner, _Bucket(max(left_s - cpu_s, -self._budget.burst_s), self._clock(), task_s))

    def wait_s(self, owner: str) -> float:
        """How long the owner must wait for its next task; 0 if its bucket is not empty, or no other owner is active."""
        left_s = self.left(owner)
        return 0.0 if left_s > 0 or not self._has_others(owner) else max(-left_s / self._budget.per_s, 1.0)

    def _has_others(self, owner: str) -> bool:
        """Whether another owner had a task within RECENT_S."""
        since_s = self._clock() - RECENT_S
        return any(bucket.task_s > since_s for one, bucket in self._buckets.items() if one != owner)

    def _keep(self, owner: str, bucket: _Bucket) -> None:
        self._buckets.pop(owner, None)
        self._buckets[owner] = bucket
        while bucket.at_s - self._buckets[oldest := next(iter(self._buckets))].at_s > self._forget_s:
            del self._buckets[oldest]
