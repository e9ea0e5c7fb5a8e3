"""Turns for one child process: one task at a time, owners by the CPU time that they used, and a bounded queue.

The next turn goes to the waiting owner with the largest budget left. So an owner that has used less CPU time than the
others waits for at most one of their turns, however many tasks they have. Budgets are token buckets, charged with the
measured CPU time of the tasks. An owner whose bucket is empty is refused, but only while others use the same child: a
single owner may use all of it.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

RECENT_S = 60.0  # an owner with a task within this time counts as a user of the child


class CpuBudget(msgspec.Struct, frozen=True):
    """The token bucket of one owner: at most `burst_s` seconds of CPU time, refilled by `per_s` in each second."""

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


class TurnLimits(msgspec.Struct, frozen=True):
    """How many tasks may wait, for how long, and how much CPU time an owner may use."""

    waiting_max: int = 256
    waiting_per_owner_max: int = 32
    wait_s: float = 45.0  # longer than a turn of another owner may take
    cpu: CpuBudget = CpuBudget()


class QueueFull(Exception):
    """Too many tasks wait, or this one waited too long. Its owner may try again after `retry_s`."""

    def __init__(self, retry_s: float = 2.0) -> None:
        super().__init__()
        self.retry_s = retry_s


class OverBudget(QueueFull):
    """The owner has used up its CPU time, and others use the child. `retry_s` is until it has some again."""


class _Waiting(NamedTuple):
    future: asyncio.Future[None]
    has_place: bool  # one of `waiting_max`
    is_budgeted: bool


class Turns:
    """Whose task runs next: the oldest of the owner with the most left; of equals, the one that waits longest."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._budgets = CpuBudgets(limits.cpu)
        self._is_busy = False
        self._waiting: dict[str, deque[_Waiting]] = {}  # by owner; one that had a turn is behind the others
        self._places_taken = 0

    @asynccontextmanager
    async def turn(self, owner: str, *, is_bounded: bool = True, has_begun: bool = False) -> AsyncIterator[None]:
        """Wait for the turn. If that is bounded: QueueFull where there is no place, or it does not come in time.

        If it is not bounded, it takes no place of another.

        OverBudget if the budget is used up. Work that has begun is not refused for that: others only go first.
        """
        await self._take(owner, is_bounded=is_bounded, is_budgeted=is_bounded and not has_begun)
        try:
            yield
        finally:
            self._pass_on()

    def charge(self, owner: str, cpu_s: float) -> None:
        """The owner's turn used this much CPU time."""
        self._budgets.charge(owner, cpu_s)

    def use_up(self, owner: str) -> float:
        """The owner's turn counts as its whole budget. How long it must wait for the next one."""
        self._budgets.charge(owner, max(self._budgets.left(owner), 0.0))
        return self._budgets.wait_s(owner)

    def has_others(self, owner: str) -> bool:
        """Whether a task of another owner waits."""
        return any(one != owner for one in self._waiting)

    async def _take(self, owner: str, *, is_bounded: bool, is_budgeted: bool) -> None:
        self._budgets.note(owner)
        if is_budgeted and (wait_s := self._budgets.wait_s(owner)):
            raise OverBudget(wait_s)
        if not self._is_busy:
            self._is_busy = True
            return
        if is_bounded:
            self._find_place(owner)
        waiting = _Waiting(asyncio.get_running_loop().create_future(), is_bounded, is_budgeted)
        self._waiting.setdefault(owner, deque()).append(waiting)
        self._places_taken += is_bounded
        try:
            async with asyncio.timeout(self._limits.wait_s if is_bounded else None):
                await waiting.future
        except TimeoutError:
            self._leave(owner, waiting)
            raise QueueFull from None
        except BaseException:
            self._leave(owner, waiting)
            raise

    def _find_place(self, owner: str) -> None:
        """QueueFull if there is none. In a full queue, an owner with less left loses its newest task to this one."""
        if len(self._waiting.get(owner, ())) >= self._limits.waiting_per_owner_max:
            raise QueueFull
        if self._places_taken < self._limits.waiting_max:
            return
        newest_of = {one: task for one, queue in self._waiting.items() for task in queue if task.is_budgeted}
        last = min(newest_of, key=self._budgets.left, default=owner)
        if self._budgets.left(last) >= self._budgets.left(owner):
            raise QueueFull
        newest = newest_of[last]
        self._leave(last, newest)
        if not newest.future.done():
            newest.future.set_exception(QueueFull())

    def _leave(self, owner: str, waiting: _Waiting) -> None:
        """The wait ended without a turn; or with one that came in the same instant, which goes to the next."""
        queue = self._waiting.get(owner, ())
        if waiting in queue:
            self._waiting[owner].remove(waiting)
            self._places_taken -= waiting.has_place
            if not queue:
                del self._waiting[owner]
        elif not waiting.future.cancelled() and waiting.future.exception() is None:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            owner = max(self._waiting, key=self._budgets.left)
            queue = self._waiting.pop(owner)
            future, has_place, is_budgeted = queue.popleft()
            self._places_taken -= has_place
            if queue:
                self._waiting[owner] = queue  # behind the other owners
            if future.done():  # it was cancelled, and has not left yet
                continue
            if is_budgeted and (wait_s := self._budgets.wait_s(owner)):
                future.set_exception(OverBudget(wait_s))
                continue
            future.set_result(None)
            return
        self._is_busy = False
