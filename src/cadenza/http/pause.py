"""How long a client is held back after a refusal. A client that does not wait by itself is held back longer."""

import asyncio
from collections.abc import Callable

LONGER = 4
TIMES_MAX = 5


class Pause:
    """The pauses of one connection, each of at most `longest_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_s: float, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._longest_s = longest_s
        self._on_end = on_end
        self._ignored = 0  # pauses in a row that the client did not wait for
        self._was_ignored = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def begin(self, pause_s: float) -> None:
        """Pause for so long, or longer if the client ignored the last pauses; with 0 they are forgotten."""
        if not pause_s:
            self._ignored = 0
            return
        pause_s *= LONGER ** min(self._ignored, TIMES_MAX)
        self._was_ignored = False
        self._timer = self._loop.call_later(min(pause_s, self._longest_s), self._end)

    def note_input(self) -> None:
        """The client sends on. If it is being held back, it did not wait."""
        if self._timer and not self._was_ignored:
            self._was_ignored = True
            self._ignored += 1

    def cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if not self._was_ignored:
            self._ignored = 0
        self._on_end()
