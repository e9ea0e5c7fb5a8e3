"""What the requests of this process share: the rate of each key, and the slots of chat requests in flight.

Everything here is bounded: a key is forgotten once its burst is whole again, and no more requests wait for a slot than
there are slots. A fleet that shares more than a store needs the same over the network; this is the one process's own.
"""

import asyncio
import time

from cadenza.core.rates import Rate, Ticket, take_ticket
from cadenza.core.shares import Shares

SLOT_WAIT_S = 0.02  # long enough for a burst to pass, short enough for a prompt refusal
SWEEP_EVERY = 10_000


class Rates:
    """One number a key. It is not asked of keys that do not exist, so what is kept is bounded by those that do."""

    def __init__(self) -> None:
        self._whole_at_ns: dict[str, int] = {}
        self._sweep_at = SWEEP_EVERY

    def take(self, key: str, rate: Rate) -> Ticket:
        now_ns = time.monotonic_ns()
        whole_at_ns, ticket = take_ticket(self._whole_at_ns.get(key, 0), now_ns, rate)
        self._whole_at_ns[key] = whole_at_ns
        if len(self._whole_at_ns) >= self._sweep_at:
            self._sweep(now_ns)
        return ticket

    def _sweep(self, now_ns: int) -> None:
        self._whole_at_ns = {key: at_ns for key, at_ns in self._whole_at_ns.items() if at_ns > now_ns}
        self._sweep_at = len(self._whole_at_ns) + SWEEP_EVERY


class Slots:
    """The ceiling on chat requests in flight, fair between keys. A slot that is free goes to who has the fewest."""

    def __init__(self, limit: int, wait_s: float = SLOT_WAIT_S) -> None:
        self.shares = Shares(limit)
        self._wait_s = wait_s
        self._waiting: dict[asyncio.Future[None], str] = {}  # who waits, in the order of coming

    async def enter(self, key: str) -> bool:
        """Whether there is a slot, now or within a moment. Who has entered leaves, whatever happens."""
        if self.shares.take(key, time.monotonic()):
            return True
        if len(self._waiting) < self.shares.limit and await self._wait(key):
            return True
        self.shares.want(key, time.monotonic())
        return False

    def leave(self, key: str) -> None:
        self.shares.give_back(key)
        self._let_in()

    def change_limit(self, limit: int) -> None:
        self.shares.limit = limit
        self._let_in()

    async def _wait(self, key: str) -> bool:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = key
        timer = loop.call_later(self._wait_s, self._give_up, turn)
        try:
            await asyncio.wait({turn})
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(key)  # the slot came in the same instant
            raise
        finally:
            timer.cancel()
            self._waiting.pop(turn, None)
        return not turn.cancelled()

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        self._waiting.pop(turn, None)
        turn.cancel()

    def _let_in(self) -> None:
        now_s = time.monotonic()
        while self._waiting and self.shares.taken < self.shares.limit:
            turn = min(self._waiting, key=lambda turn: self.shares.held_by(self._waiting[turn]))
            if not self.shares.take(self._waiting[turn], now_s):
                return
            del self._waiting[turn]
            turn.set_result(None)
