"""How long a client is held back after a refusal. Each refusal in a row doubles the time."""

import asyncio
from collections.abc import Callable

DOUBLINGS_MAX = 10


class Pause:
    """The pauses of one connection, each of at most `longest_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_s: float, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._longest_s = longest_s
        self._on_end = on_end
        self._in_a_row = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def begin(self, pause_s: float) -> None:
        """Pause for so long, if this is the first refusal; with 0 the row is over."""
        if not pause_s:
            self._in_a_row = 0
            return
        pause_s *= 2 ** min(self._in_a_row, DOUBLINGS_MAX)
        self._in_a_row += 1
        self._timer = self._loop.call_later(min(pause_s, self._longest_s), self._end)

    def cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._on_end()
