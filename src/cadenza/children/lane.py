"""One child process and the tasks that wait for it.

It starts with the first task, and again after it has died. A child without a task for some time is ended: one that
counts tokens takes 94 MB.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.process import Buffer, Child, Died, TooHeavy
from cadenza.children.turns import OverBudget, TurnLimits, Turns

LOOK_S = 0.1

Run = Callable[[bytes, Sequence[Buffer]], Awaitable[bytearray]]  # a task within a turn


class LaneSettings(msgspec.Struct, frozen=True):
    """The module that the child runs, what it may use, and how long a task may wait and take."""

    module: str
    limits: ChildLimits
    task_s: float  # by the clock, on a machine that is busy with other things
    turns: TurnLimits = TurnLimits()
    is_shared: bool = True  # whether one child serves several owners; if not, the next owner gets a new one
    idle_s: float = 300.0  # without a task for this long, the child is ended
    held_s: float = math.inf  # how long a task may take, by the clock, while another owner waits


class Lane:
    """One task at a time; owners take turns, by the CPU time that their tasks used."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._turns = Turns(settings.turns)
        self._child: Child | None = None
        self._owner = ""  # whose task ran last
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[int] | None = None  # the end of a child that was idle
        self.is_sandboxed = True  # whether the child that ran last reported that the system filters its system calls

    @property
    def has_child(self) -> bool:
        return self._child is not None

    async def run(self, owner: str, head: bytes, body: Sequence[Buffer] = (), *, is_bounded: bool = True) -> bytearray:
        """The bytes of the child's reply. QueueFull, Died, TooHeavy or TimeoutError if there is none.

        OverBudget, which is a QueueFull, if it took more than `held_s` while another owner waited.

        A task that is cancelled or takes too long ends the child: there is no other way to stop it.
        """
        async with self.turn(owner, is_bounded=is_bounded) as run:
            return await run(head, body)

    @asynccontextmanager
    async def turn(self, owner: str, *, is_bounded: bool = True, has_begun: bool = False) -> AsyncIterator[Run]:
        """For several tasks of one owner, one after the other: none of another owner comes between them.

        `has_begun`: the work has started in an earlier turn, and continues even if the budget is used up.
        """
        async with self._turns.turn(owner, is_bounded=is_bounded, has_begun=has_begun):
            yield partial(self._run, owner)

    async def _run(self, owner: str, head: bytes, body: Sequence[Buffer]) -> bytearray:
        child = self._take_child()
        if child:
            self._turns.charge(self._owner, child.take_cpu_s())  # for what it did after its last reply
        if child and not (child.is_alive and (self._settings.is_shared or self._owner == owner)):
            await child.end()
            child = None
        self._owner = owner
        child = child or await Child.start(self._settings.limits, self._settings.module)
        try:
            reply = await self._exchange(child, owner, head, body)
            self._child = child
            self._idle_timer = asyncio.get_running_loop().call_later(self._settings.idle_s, self._end_idle)
        except (TooHeavy, Died):
            raise
        except BaseException:
            await child.end()
            raise
        finally:
            # An owner whose task ended the child pays for the start of the next one.
            next_start_s = 0.0 if self._child else child.start_cpu_s
            self._turns.charge(owner, child.take_cpu_s() + next_start_s)
        self.is_sandboxed = child.is_sandboxed
        return reply

    async def _exchange(self, child: Child, owner: str, head: bytes, body: Sequence[Buffer]) -> bytearray:
        clock, settings = asyncio.get_running_loop().time, self._settings
        began_s = clock()
        exchange = asyncio.create_task(child.exchange(head, body))
        try:
            while True:
                await asyncio.wait([exchange], timeout=LOOK_S)
                if exchange.done():
                    return exchange.result()
                held_s = clock() - began_s
                if held_s > settings.held_s and self._turns.has_others(owner):
                    raise OverBudget(self._turns.use_up(owner))
                if held_s > settings.task_s:
                    raise TimeoutError
        finally:
            exchange.cancel()

    async def stop(self) -> None:
        if child := self._take_child():
            await child.end()
        if self._ending:
            await self._ending

    def _take_child(self) -> Child | None:
        if self._idle_timer:
            self._idle_timer.cancel()
        child, self._child = self._child, None
        return child

    def _end_idle(self) -> None:
        if child := self._take_child():
            self._ending = asyncio.create_task(child.end())
