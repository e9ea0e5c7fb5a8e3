"""The sending side of a server's connection: backpressure, and how long a client may leave its reply unread."""

import asyncio
from collections.abc import Callable

from cadenza.http.deadline import Deadline


class WriteFlow:
    """Paused from the moment in which the transport's buffer is full until the client has read most of it."""

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
        """The connection is lost: nothing waits any more."""
        self.resume()
        self._deadline.close()

    async def drain(self) -> None:
        """Return once it is not paused."""
        if self._drained:
            await self._drained.wait()
