"""Starts the serving of new requests, a few in each millisecond or turn of the event loop.

When thousands of requests arrive at once, all of them would be begun in one turn, and the requests that already run
would wait for that turn to end. With the turnstile the new ones wait instead, in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable

STARTS_PER_TURN = 8  # a turn then takes about a millisecond


class Turnstile:
    """One for all connections of a process. As long as nobody waits, it costs a look at the loop's clock."""

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN, clock: Callable[[], float] | None = None) -> None:
        self._starts_per_turn = starts_per_turn
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time  # in uvloop it stands still during a turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._millisecond = 0
        self._started = 0  # in this millisecond

    def pass_now(self) -> bool:
        """Whether one may start now: nobody waits, and not enough were started already."""
        if self._waiting:
            return False
        millisecond = int(self._clock() * 1000)
        if millisecond != self._millisecond:
            self._millisecond, self._started = millisecond, 0
        self._started += 1
        return self._started <= self._starts_per_turn

    def enter(self, start: Callable[[], None]) -> None:
        """Call `start` now, or in a later turn if enough were started already."""
        if self.pass_now():
            start()
        else:
            self.wait(start)

    def wait(self, start: Callable[[], None]) -> None:
        """Call `start` in a later turn."""
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.append(start)

    def _turn(self) -> None:
        for _ in range(min(self._starts_per_turn, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            self._loop.call_soon(self._turn)
