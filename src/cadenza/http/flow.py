"""Timing and backpressure of a connection: its deadline, its writes that wait for the client, and its pauses."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

READING_TURNS = 8  # of the loop; in each, up to 256 KiB of every socket are read
PAUSE_FACTOR = 4  # by which the pause of a client grows that did not wait
PAUSE_GROWTH_MAX = 5  # how often it grows


class Deadline:
    """Calls `on_expired` once the loop's clock has reached the moment that was set last. One timer for a connection.

    What has arrived by then is read first, and may move the deadline: when a process was stopped, its loop runs the
    timers that are due before it looks at its sockets.

    Moving a deadline later costs an assignment: the timer fires at the earlier moment, sees that there is time left,
    and is set again. A timeout context of asyncio's costs 9 µs at each use.
    """

    __slots__ = ("_loop", "_on_expired", "_timer", "_timer_at_s", "_turns", "at_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self.at_s = math.inf  # by the loop's clock; a later moment may simply be assigned
        self._timer: asyncio.Handle | None = None
        self._timer_at_s = math.inf
        self._turns = 0  # of the loop since the timer found that the time is over

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
        """Remove the deadline. The timer stays, for the next one."""
        self.at_s = math.inf

    def close(self) -> None:
        """Remove the deadline, its timer and its callback, which would keep the connection in a cycle."""
        self.at_s = math.inf
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = math.inf
        self._on_expired = _do_nothing

    def _go_off(self) -> None:
        if self._loop.time() >= self.at_s and self._turns < READING_TURNS:
            self._turns += 1
            self._timer = self._loop.call_soon(self._go_off)
            return
        self._timer = None
        self._timer_at_s = math.inf
        self._turns = 0
        if self._loop.time() < self.at_s:
            self.set(self.at_s)
        else:
            self.at_s = math.inf
            self._on_expired()


@asynccontextmanager
async def timeout_at(at_s: float) -> AsyncIterator[asyncio.Timeout]:
    """Like asyncio's, but what has arrived by then is read first."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timeout:
        deadline = Deadline(loop, lambda: timeout.reschedule(loop.time()))
        deadline.set(at_s)
        try:
            yield timeout
        finally:
            deadline.close()


class WriteFlow:
    """Backpressure: paused while the transport's buffer is full, until the client has read most of it.

    A client that leaves its reply unread for `unread_s` is given up.
    """

    __slots__ = ("_deadline", "_drained", "_unread_s")

    def __init__(self, unread_s: float, on_expired: Callable[[], None]) -> None:
        self._unread_s = unread_s
        self._deadline = Deadline(asyncio.get_running_loop(), on_expired)
        self._drained: asyncio.Event | None = None  # while it is paused

    def pause(self) -> None:
        self._drained = asyncio.Event()
        self._deadline.set_after(self._unread_s)

    def resume(self) -> None:
        self._deadline.clear()
        if self._drained:
            self._drained.set()
            self._drained = None

    def close(self) -> None:
        """The connection is lost: wake what waits."""
        self.resume()
        self._deadline.close()

    async def drain(self) -> None:
        """Return once it is not paused."""
        if self._drained:
            await self._drained.wait()


class Pause:
    """Delays the next request after a refusal: longer for a client that does not back off, at most `longest_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_s: float, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._longest_s = longest_s
        self._on_end = on_end
        self.ignored = 0  # pauses in a row that the client did not wait for
        self._was_ignored = False
        self.timer: asyncio.TimerHandle | None = None  # while it pauses

    def begin(self, pause_s: float) -> None:
        """Pause for `pause_s`, or longer if the client ignored the last pauses."""
        pause_s *= PAUSE_FACTOR ** min(self.ignored, PAUSE_GROWTH_MAX)
        self._was_ignored = False
        self.timer = self._loop.call_later(min(pause_s, self._longest_s), self._end)

    def note_input(self) -> None:
        """The client sent more input. During a pause this means that it did not wait."""
        if self.timer and not self._was_ignored:
            self._was_ignored = True
            self.ignored += 1

    def close(self) -> None:
        """End it without a call."""
        if self.timer:
            self.timer.cancel()
            self.timer = None
        self._on_end = _do_nothing

    def _end(self) -> None:
        self.timer = None
        if not self._was_ignored:
            self.ignored = 0
        self._on_end()


def _do_nothing() -> None:
    pass
