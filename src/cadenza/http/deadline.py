"""One timer for a whole connection, in place of one for each read or write.

Moving a deadline later costs an assignment: the timer goes off at the earlier moment, sees that there is time left, and
is set again. A timeout context of asyncio's costs 9 µs at each use.
"""

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls `on_expired` once the loop's clock has reached the moment that was set last."""

    __slots__ = ("_at_s", "_loop", "_on_expired", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def at_s(self) -> float:
        """The moment, by the loop's clock; infinity where none is set."""
        return self._at_s

    def set(self, at_s: float) -> None:
        self._at_s = at_s
        if self._timer and self._timer.when() > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at_s < math.inf:
            self._timer = self._loop.call_at(at_s, self._go_off)

    def clear(self) -> None:
        """No deadline for now. The timer stays, for the next one."""
        self._at_s = math.inf

    def close(self) -> None:
        """No deadline ever again."""
        self._at_s = math.inf
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
        else:
            self._at_s = math.inf
            self._on_expired()
