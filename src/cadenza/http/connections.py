"""The open connections of a server, bounded in number: in all, by address, and by owner.

Connections without a request make room for new ones. The application names the owner of a connection.

A connection is quiet while it has no request in flight: it is new, idle or lingering. The one that has been quiet for
longest is closed first, but none before `quiet_s_min`: its request may be on its way.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Protocol

import msgspec

STARTS_PER_TURN = 8  # a turn then takes about a millisecond


class ConnectionsLimits(msgspec.Struct, frozen=True):
    """How many connections there may be."""

    served_max: int = 10_000
    by_address_max: int = 5_000  # from one address that is not a trusted proxy's
    by_owner_max: int = 2_500
    refused_max: int = 256  # more than that, while they are told that there is no room
    lingering_max: int = 256  # that are read only so that a client gets its refusal
    quiet_s_min: float = 1.0


class Room(Enum):
    """What there is room for."""

    SERVE = auto()
    REFUSE = auto()
    NONE = auto()


class Closable(Protocol):
    """A connection."""

    peer: str

    def abort(self) -> None: ...

    def shut(self) -> None: ...


class Connections:
    """All open connections of one process."""

    def __init__(self, limits: ConnectionsLimits | None = None) -> None:
        self._limits = limits or ConnectionsLimits()
        self._loop = asyncio.get_running_loop()
        self.turnstile = Turnstile()
        self._open: set[Closable] = set()
        self._by_address: Counter[str] = Counter()
        self._owners: dict[Closable, str] = {}
        self._by_owner: Counter[str] = Counter()
        self.quiet: dict[Closable, float] = {}  # since when, by the loop's clock; the longest first
        self._lingering: set[Closable] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Closable]:
        return iter(list(self._open))

    def add(self, connection: Closable) -> None:
        self._open.add(connection)
        self._by_address[connection.peer] += 1
        self.quiet[connection] = self._loop.time()

    def remove(self, connection: Closable) -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        _count_down(self._by_address, connection.peer)
        if owner := self._owners.pop(connection, None):
            _count_down(self._by_owner, owner)
        self.quiet.pop(connection, None)
        self._lingering.discard(connection)

    def is_crowded(self, address: str) -> bool:
        """Whether there are as many connections from this address as it may have."""
        return self._by_address[address] >= self._limits.by_address_max

    def claim(self, connection: Closable, owner: str) -> bool:
        """The connection belongs to this owner from now on. False if the owner has too many."""
        before = self._owners.get(connection)
        if before != owner and connection in self._open:
            if before:
                _count_down(self._by_owner, before)
            self._owners[connection] = owner
            self._by_owner[owner] += 1
        return self._by_owner[owner] <= self._limits.by_owner_max

    def may_linger(self, connection: Closable) -> bool:
        """Take a place among those that linger; False if all are taken."""
        if len(self._lingering) >= self._limits.lingering_max:
            return False
        self._lingering.add(connection)
        self.quiet[connection] = self._loop.time()
        return True

    def has_free_place(self, arriving: int) -> bool:
        """Whether one connection more would be served, beside those that arrive, without closing another."""
        return len(self._open) + arriving < self._limits.served_max

    def find_room(self, arriving: int) -> Room:
        """Room for one connection more, beside those that arrive. If it is full, the quietest one is closed.

        There is none for a moment if one that is quiet or arrives can be closed soon, or if too many are being refused.
        """
        excess = len(self._open) + arriving - self._limits.served_max
        if excess >= 0 and self.close_quietest():
            excess -= 1
        if excess < 0:
            return Room.SERVE
        return Room.NONE if self.quiet or arriving or excess >= self._limits.refused_max else Room.REFUSE

    def close_quietest(self) -> bool:
        """Close the connection that has been quiet for longest; False if none has been for long enough."""
        quietest = next(iter(self.quiet.items()), None)
        if quietest is None or self._loop.time() - quietest[1] < self._limits.quiet_s_min:
            return False
        self.remove(quietest[0])
        quietest[0].abort()
        return True


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


class Turnstile:
    """Starts the serving of new requests, a few in each millisecond or turn of the event loop.

    When thousands of requests arrive at once, all of them would begin in one turn, and the requests that already run
    would wait for it to end. Instead the new ones wait, in the order of their arrival. As long as none waits, this
    costs a look at the loop's clock. One for all connections of a process.
    """

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN, clock: Callable[[], float] | None = None) -> None:
        self._starts_per_turn = starts_per_turn
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time  # in uvloop it stands still during a turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._until_s = 0.0  # the end of a millisecond, and the requests that were started in it
        self._started = 0

    def pass_now(self) -> bool:
        """Whether a request may start now: none waits, and fewer than the limit were started in this turn."""
        if self._waiting:
            return False
        now_s = self._clock()
        if now_s >= self._until_s:
            self._until_s, self._started = now_s + 0.001, 0
        self._started = started = self._started + 1
        return started <= self._starts_per_turn

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
