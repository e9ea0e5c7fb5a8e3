"""Turns for one child process: one task at a time, owners in turn, and a bounded queue."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec


class TurnLimits(msgspec.Struct, frozen=True):
    """How many tasks may wait, and for how long."""

    waiting_max: int = 256
    waiting_per_owner_max: int = 32
    wait_s: float = 20.0


class QueueFull(Exception):
    """Too many tasks wait, or this one waited too long."""


class Turns:
    """Whose task runs next: the oldest of the owner that was served least recently."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._is_busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, in the order of their turns
        self._waiting_count = 0

    @asynccontextmanager
    async def turn(self, owner: str, *, is_bounded: bool = True) -> AsyncIterator[None]:
        """Wait for the turn. If that is bounded: QueueFull where there is no place, or it does not come in time."""
        await self._take(owner, is_bounded=is_bounded)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, owner: str, *, is_bounded: bool) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        if is_bounded and self._is_full(owner):
            raise QueueFull
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._waiting_count += 1
        try:
            async with asyncio.timeout(self._limits.wait_s if is_bounded else None):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # the turn came in the same instant
            else:
                self._leave(owner, turn)
            if isinstance(error, TimeoutError):
                raise QueueFull from None
            raise

    def _is_full(self, owner: str) -> bool:
        waiting = len(self._waiting.get(owner, ()))
        return self._waiting_count >= self._limits.waiting_max or waiting >= self._limits.waiting_per_owner_max

    def _leave(self, owner: str, turn: asyncio.Future[None]) -> None:
        self._waiting[owner].remove(turn)
        self._waiting_count -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]

    def _pass_on(self) -> None:
        for owner, queue in self._waiting.items():
            turn = queue.popleft()
            self._waiting_count -= 1
            del self._waiting[owner]
            if queue:
                self._waiting[owner] = queue  # behind the other owners
            turn.set_result(None)
            return
        self._is_busy = False
