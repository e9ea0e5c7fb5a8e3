"""One connection to Valkey: commands go out together, once per turn of the event loop, and answers come in order.

A command that is not answered in time, or an answer that is not RESP, ends the connection. When it ends, every command
that waits is answered with None.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

GRACE_S = 0.01  # after a stall of this process its timers run before the answers that have arrived are read
NOT_UNDERSTOOD = "the answer was not understood"

Answer = Any
Answered = Callable[[Answer], None]
Part = str | bytes | int


class Connection(asyncio.Protocol):
    """Sends commands. `pushed` gets the messages of subscribed channels, `ended` the reason for the end, once."""

    def __init__(self, trip_s: float, pushed: Callable[[list[bytes]], None], ended: Callable[[str], None]) -> None:
        self._trip_s = trip_s
        self._pushed = pushed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._waiting: deque[tuple[Answered, float]] = deque()  # with the time at which each was sent
        self._late: Answered | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("the connection was closed" if exc is None else type(exc).__name__)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False and self._reason is None:
                if isinstance(answer, hiredis.PushNotification):
                    self._pushed(answer)
                else:
                    answered, _ = self._waiting.popleft()
                    answered(answer)
        except (hiredis.ProtocolError, IndexError):
            self.end(NOT_UNDERSTOOD)

    def send(self, answered: Answered, *parts: Part) -> None:
        if self._reason is not None:
            answered(None)
            return
        self._write(parts)
        self._waiting.append((answered, time.monotonic()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._trip_s, self._check)

    def subscribe(self, channel: str) -> None:
        """With RESP3 the answer is a push."""
        self._write(("SUBSCRIBE", channel))

    def end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.abort()
        self._ended(reason)
        while self._waiting:
            answered, _ = self._waiting.popleft()
            answered(None)

    def _write(self, parts: tuple[Part, ...]) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(hiredis.pack_command(parts))  # type: ignore[arg-type]  # declared as a tuple of one

    def _flush(self) -> None:
        """A connection that was closed since takes no bytes: uvloop raises then."""
        assert self._transport
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _check(self) -> None:
        """End the connection if the oldest command is late, and was already late a moment ago."""
        self._timer = None
        if not self._waiting:
            return
        oldest, sent_s = self._waiting[0]
        left_s = sent_s + self._trip_s - time.monotonic()
        if left_s <= 0:
            if self._late is oldest:
                self.end("no answer in time")
                return
            self._late, left_s = oldest, GRACE_S
        self._timer = self._loop.call_later(left_s, self._check)
