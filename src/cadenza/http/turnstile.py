"""Starts the serving of new requests, a few in each turn of the event loop.

When thousands of requests arrive at once, all of them would be begun in one turn, and the requests that already run
would wait for that turn to end. With the turnstile the new ones wait instead, in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable

STARTS_PER_TURN = 8  # a turn then takes about a millisecond


class Turnstile:
    """One for all connections of a process."""

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN) -> None:
        self._starts_per_turn = starts_per_turn
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._started = 0  # in this turn
        self._is_turning = False

    def enter(self, start: Callable[[], None]) -> None:
        """Call `start` now, or in a later turn if enough were started in this one."""
        if self._started < self._starts_per_turn:
            self._started += 1
            start()
        else:
            self._waiting.append(start)
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._started = 0
        while self._waiting and self._started < self._starts_per_turn:
            self._started += 1
            self._waiting.popleft()()
        self._is_turning = self._started > 0
        if self._is_turning:
            self._loop.call_soon(self._turn)
