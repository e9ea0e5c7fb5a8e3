"""The body of a request, bounded in size, in time and in memory.

The connection feeds it; the application reads it whole. Until the application asks for it, only a small buffer is
read from the socket, so backpressure reaches the client.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum, auto
from typing import Protocol

import msgspec

MIB = 1024 * 1024
RATE_STEPS = 64  # the marks that are kept of a body's progress


class BodyLimits(msgspec.Struct, frozen=True):
    """A slow but steady upload is accepted; one below the minimum rate is refused.

    In any `time_s` seconds, `time_s * bytes_per_s_min` bytes must arrive, or the rest of the body.
    """

    bytes_max: int = 32 * MIB
    unread_bytes_max: int = 64 * 1024
    rest_bytes_max: int = MIB  # of an unwanted body, read to keep its connection; if more is left, it is closed
    time_s: float = 20.0  # for a small body; a large one gets more, by the minimum rate
    bytes_per_s_min: int = 32 * 1024


class BodyTooLarge(Exception):
    """The body is larger than the limit."""


class BodyTimeout(Exception):
    """The body did not arrive in time."""


class BodyMemoryFull(Exception):
    """There is no room for a body. The message, if there is one, says whose bodies take it."""


class BodyBudget(Protocol):
    """The memory that one body may take."""

    def expect(self, size_bytes: int) -> None:
        """Refuse a body of this announced size before it is read, if there is no room for it. This takes nothing."""

    def take(self, size_bytes: int) -> None:
        """Take this many bytes more, or raise BodyMemoryFull and take nothing."""

    def release(self, size_bytes: int) -> None:
        """Give back everything that was taken."""


class BodyMemory:
    """The bytes that the bodies of all requests may have in memory together."""

    def __init__(self, bytes_max: int = 512 * MIB) -> None:
        self.free_bytes = bytes_max

    def expect(self, size_bytes: int) -> None:
        if size_bytes > self.free_bytes:
            raise BodyMemoryFull

    def take(self, size_bytes: int) -> None:
        self.expect(size_bytes)
        self.free_bytes -= size_bytes

    def release(self, size_bytes: int) -> None:
        self.free_bytes += size_bytes


class MinimumRate:
    """The minimum rate of a body over a sliding window. Fast bytes earn no time beyond the window."""

    def __init__(self, limits: BodyLimits, now_s: float) -> None:
        self._window_s = limits.time_s
        self._bytes_min = limits.time_s * limits.bytes_per_s_min
        self._step_s = limits.time_s / RATE_STEPS
        self._marks = deque([(now_s, 0)])  # the beginning of a step, and how many bytes there were at its end

    def deadline_s(self, now_s: float, size_bytes: int) -> float:
        """The time at which the window will have too few bytes if none arrive. A new body has a whole window."""
        marks = self._marks
        if now_s - marks[-1][0] < self._step_s:
            now_s = marks.pop()[0]
        marks.append((now_s, size_bytes))
        while marks[0][1] <= size_bytes - self._bytes_min:
            marks.popleft()
        return marks[0][0] + self._window_s


class BodyState(IntEnum):
    """How much of the body has arrived."""

    AWAITING_CONTINUE = auto()
    RECEIVING = auto()
    COMPLETE = auto()


AWAITING_CONTINUE, RECEIVING, COMPLETE = BodyState  # as names: Python 3.11 is slow to look up BodyState.X

# The transitions: for each event, the states in which it may happen, and the next state of each.
BYTES_ARRIVE = {AWAITING_CONTINUE: RECEIVING, RECEIVING: RECEIVING}  # a client need not wait for "100 Continue"
CONTINUE_SENT = {AWAITING_CONTINUE: RECEIVING}
BODY_ENDS = {AWAITING_CONTINUE: COMPLETE, RECEIVING: COMPLETE}


class RequestBody(msgspec.Struct, eq=False):
    """One body: filled by the connection, read once by the application."""

    limits: BodyLimits
    state: BodyState = RECEIVING
    parts: list[bytes] = msgspec.field(default_factory=list)  # that have arrived, and the application has not read
    unread_bytes: int = 0  # of these parts
    is_complete: bool = False
    size_bytes: int = 0  # read by the application, and taken from the budget
    budget: BodyBudget | None = None
    arrival: asyncio.Future[None] | None = None

    __repr__ = object.__repr__  # shows no content

    @property
    def is_awaiting_continue(self) -> bool:
        return self.state is AWAITING_CONTINUE

    @property
    def is_full(self) -> bool:
        """Whether the connection should stop reading until the application catches up."""
        return self.state is not COMPLETE and self.unread_bytes > self.limits.unread_bytes_max

    def has_large_rest(self, content_length: bytes) -> bool:
        """Whether too much is left to read it only to keep the connection. False if the length is unknown."""
        if not content_length.isdigit():
            return False
        received_bytes = self.size_bytes + self.unread_bytes
        return int(content_length) - received_bytes > self.limits.rest_bytes_max

    def note_continue(self) -> None:
        """The client was told that it may send the body."""
        self.state = CONTINUE_SENT[self.state]

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection."""
        self.state = BYTES_ARRIVE[self.state]
        self.parts.append(data)
        self.unread_bytes += len(data)
        if self.arrival:
            self._wake_reader(self.arrival)

    def end(self) -> None:
        self.state = BODY_ENDS[self.state]
        self.is_complete = True
        if self.arrival:
            self._wake_reader(self.arrival)

    def take(self, budget: BodyBudget | None = None) -> bytes:
        """The bytes that have arrived; BodyTooLarge or BodyMemoryFull where a limit is passed.

        A small body needs no budget.
        """
        size_bytes = self.size_bytes + self.unread_bytes
        if size_bytes > self.limits.bytes_max:
            raise BodyTooLarge
        if budget:
            budget.take(self.unread_bytes)
            self.budget = budget
        arrived = b"".join(self.parts)
        self.parts.clear()
        self.size_bytes, self.unread_bytes = size_bytes, 0
        return arrived

    def release(self) -> None:
        """Give the memory of the body back to its budget."""
        if self.budget is not None:
            self.budget.release(self.size_bytes)
            self.budget = None

    async def read(
        self, budget: BodyBudget, content_length: bytes, ask_for_more: Callable[[], None]
    ) -> bytes | bytearray:
        """The whole body; BodyTooLarge, BodyTimeout or BodyMemoryFull where a limit is passed."""
        if self.is_complete:
            return self.take(budget)
        if content_length.isdigit():
            if len(content_length) > 20 or int(content_length) > self.limits.bytes_max:
                raise BodyTooLarge
            budget.expect(int(content_length))
        try:
            return await self._receive(budget, ask_for_more)
        except TimeoutError:
            raise BodyTimeout from None

    async def _receive(self, budget: BodyBudget, ask_for_more: Callable[[], None]) -> bytearray:
        loop = asyncio.get_running_loop()
        rate = MinimumRate(self.limits, loop.time())
        async with asyncio.timeout(None) as timeout:
            body = bytearray(self.take(budget))  # joining many parts at the end would hold the loop for 30 ms
            while not self.is_complete:
                timeout.reschedule(rate.deadline_s(loop.time(), self.size_bytes))
                self.arrival = loop.create_future()
                ask_for_more()
                await self.arrival
                body += self.take(budget)
            return body

    def _wake_reader(self, arrival: asyncio.Future[None]) -> None:
        if not arrival.done():
            arrival.set_result(None)
