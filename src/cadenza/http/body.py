"""The body of a request, bounded in size, in time and in memory.

The connection feeds it; the application reads it whole. Until the application asks for it, no more than a small buffer
is read from the socket, so backpressure reaches the client.

    state              from the client                      the application reads
    AWAITING_CONTINUE  bytes -> RECEIVING, end -> COMPLETE  sends "100 Continue" -> RECEIVING
    RECEIVING          bytes -> RECEIVING, end -> COMPLETE  waits
    COMPLETE           -                                    returns
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

import msgspec

MIB = 1024 * 1024


class BodyLimits(msgspec.Struct, frozen=True):
    """A slow but steady upload is accepted; one below the minimum rate is refused."""

    bytes_max: int = 32 * MIB
    unread_bytes_max: int = 64 * 1024
    time_s: float = 20.0  # for a small body; a large one gets more, by the minimum rate
    bytes_per_s_min: int = 32 * 1024


class BodyTooLarge(Exception):
    """The body is larger than the limit."""


class BodyTimeout(Exception):
    """The body did not arrive in time."""


class BodyMemoryFull(Exception):
    """The bodies of all requests together take as much memory as they may."""


class BodyMemory:
    """The bytes that the bodies of all requests may have in memory together."""

    def __init__(self, bytes_max: int = 512 * MIB) -> None:
        self._free_bytes = bytes_max

    def take(self, size_bytes: int) -> None:
        if size_bytes > self._free_bytes:
            raise BodyMemoryFull
        self._free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes


class BodyState(Enum):
    """How much of the body has arrived. See the module's table."""

    AWAITING_CONTINUE = auto()
    RECEIVING = auto()
    COMPLETE = auto()


AWAITING_CONTINUE, RECEIVING, COMPLETE = BodyState  # as names: Python 3.11 is slow to look up BodyState.X


class RequestBody:
    """One body: filled by the connection, read once by the application."""

    __slots__ = ("_arrival", "_limits", "_parts", "_unread_bytes", "size_bytes", "state")

    def __init__(self, limits: BodyLimits, *, expects_continue: bool) -> None:
        self.state = AWAITING_CONTINUE if expects_continue else RECEIVING
        self.size_bytes = 0  # read by the application, and taken from the body memory
        self._limits = limits
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_complete(self) -> bool:
        return self.state is COMPLETE

    @property
    def is_awaiting_continue(self) -> bool:
        return self.state is AWAITING_CONTINUE

    def note_continue(self) -> None:
        """The client was told that it may send the body."""
        self.state = RECEIVING

    def feed(self, data: bytes) -> bool:
        """Take bytes from the connection. False once it should stop reading until the application catches up."""
        assert self.state is not COMPLETE
        self.state = RECEIVING
        self._parts.append(data)
        self._unread_bytes += len(data)
        self._wake_reader()
        return self._unread_bytes <= self._limits.unread_bytes_max

    def end(self) -> None:
        assert self.state is not COMPLETE
        self.state = COMPLETE
        self._wake_reader()

    def take(self, memory: BodyMemory) -> bytes:
        """The bytes that have arrived; BodyTooLarge or BodyMemoryFull where a limit is passed."""
        arrived = b"".join(self._parts)
        if self.size_bytes + len(arrived) > self._limits.bytes_max:
            raise BodyTooLarge
        memory.take(len(arrived))
        self.size_bytes += len(arrived)
        self._parts.clear()
        self._unread_bytes = 0
        return arrived

    async def read(self, memory: BodyMemory, content_length: bytes, ask_for_more: Callable[[], None]) -> bytearray:
        """The whole body; BodyTooLarge, BodyTimeout or BodyMemoryFull where a limit is passed."""
        bytes_max = self._limits.bytes_max
        if content_length.isdigit() and (len(content_length) > 20 or int(content_length) > bytes_max):
            raise BodyTooLarge
        try:
            return await self._receive(memory, ask_for_more)
        except TimeoutError:
            raise BodyTimeout from None

    async def _receive(self, memory: BodyMemory, ask_for_more: Callable[[], None]) -> bytearray:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._limits.time_s
        async with asyncio.timeout_at(deadline_s) as timeout:
            body = bytearray(self.take(memory))  # joining many parts at the end would hold the loop for 30 ms
            while not self.is_complete:
                timeout.reschedule(deadline_s + self.size_bytes / self._limits.bytes_per_s_min)
                self._arrival = loop.create_future()
                ask_for_more()
                await self._arrival
                body += self.take(memory)
            return body

    def _wake_reader(self) -> None:
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)
