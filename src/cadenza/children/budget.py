"""How much CPU time of a child process each owner has left, by what the system measured for its tasks.

An owner has `burst_s` seconds at first, and gets `per_s` back in each second. One that has used them up is refused, but
only while others use the same child: an owner alone may use all of it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

RECENT_S = 60.0  # an owner that came within this time is one of the others


class CpuBudget(msgspec.Struct, frozen=True):
    """The CPU time of one owner: as much at once, and as much in each second, on average."""

    burst_s: float = 10.0
    per_s: float = 0.25


class _Account(NamedTuple):
    left_s: float
    at_s: float  # when that was so
    came_s: float  # when its owner came last


class CpuBudgets:
    """The budgets of all owners of one child. An owner that has been idle for long is forgotten: its budget is full."""

    def __init__(self, budget: CpuBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._accounts: dict[str, _Account] = {}  # the one that was used last comes last
        self._forget_s = max(RECENT_S, 2 * budget.burst_s / budget.per_s)

    def __len__(self) -> int:
        return len(self._accounts)

    def left(self, owner: str) -> float:
        """In seconds; below zero for an owner that has used more than it had."""
        account = self._accounts.get(owner)
        if account is None:
            return self._budget.burst_s
        return min(self._budget.burst_s, account.left_s + (self._clock() - account.at_s) * self._budget.per_s)

    def note(self, owner: str) -> None:
        """The owner has a task."""
        now_s = self._clock()
        self._keep(owner, _Account(self.left(owner), now_s, now_s))

    def charge(self, owner: str, cpu_s: float) -> None:
        """Take this off the owner's budget. No owner owes more than one burst, so that each can be served again."""
        left_s, account = self.left(owner), self._accounts.get(owner)
        came_s = account.came_s if account else -RECENT_S
        self._keep(owner, _Account(max(left_s - cpu_s, -self._budget.burst_s), self._clock(), came_s))

    def wait_s(self, owner: str) -> float:
        """How long the owner must wait for its next task; 0 if it has something left, or is alone."""
        left_s = self.left(owner)
        return 0.0 if left_s > 0 or not self._has_others(owner) else max(-left_s / self._budget.per_s, 1.0)

    def _has_others(self, owner: str) -> bool:
        """Whether another owner came a short while ago."""
        since_s = self._clock() - RECENT_S
        return any(account.came_s > since_s for one, account in self._accounts.items() if one != owner)

    def _keep(self, owner: str, account: _Account) -> None:
        self._accounts.pop(owner, None)
        self._accounts[owner] = account
        while account.at_s - self._accounts[oldest := next(iter(self._accounts))].at_s > self._forget_s:
            del self._accounts[oldest]
