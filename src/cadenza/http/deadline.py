"""One timer for a whole connection, in place of one for each read or write.

Moving a deadline later costs an assignment: the timer goes off at the earlier moment, sees that there is time left, and
is set again. A timeout context of asyncio's costs 9 µs at each use.
"""

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls `on_expired` once the loop's clock has reached the moment that was set last."""

    __slots__ = ("_loop", "_on_expired", "_timer", "_timer_at_s", "at_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self.at_s = math.inf  # by the loop's clock; a later moment may simply be assigned
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def set(self, at_s: float) -> None:
        self.at_s = at_s
        if at_s < self._timer_at_s:
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_at(at_s, self._go_off)
            self._timer_at_s = at_s

    def set_after(self, duration_s: float) -> None:
        self.set(self._loop.time() + duration_s)

    def clear(self) -> None:
        """No deadline for now. The timer stays, for the next one."""
        self.at_s = math.inf

    def close(self) -> None:
        """No deadline ever again."""
        self.at_s = math.inf
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = math.inf

    def _go_off(self) -> None:
        self._timer = None
        self._timer_at_s = math.inf
        if self._loop.time() < self.at_s:
            self.set(self.at_s)
        else:
            self.at_s = math.inf
            self._on_expired()
