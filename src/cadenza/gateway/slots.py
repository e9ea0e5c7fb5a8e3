"""The slots of chat requests in flight: a concurrency limit that is fair between keys.

A request that finds no slot waits a moment. A request whose key has less than its share waits
longer, and is served next. The slots of a fleet are leased to its processes, which ask for more when they need them.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from cadenza.core.errors import RateLimited
from cadenza.core.shares import Shares, SlotLease, Use
from cadenza.fleet.shared import Lender
from cadenza.observe import Metrics

SLOT_WAIT_S = 0.02  # long enough for a burst to pass, short enough for a quick refusal
SHARE_WAIT_S = 1.0  # for a key below its share: by then most probably a request of another key has ended
SATURATED_RETRY_S = 1.0


class Slots:
    """The ceiling on chat requests in flight. A free slot goes to the waiting key that has the fewest."""

    def __init__(
        self,
        limit: int,
        wait_s: float = SLOT_WAIT_S,
        share_wait_s: float = SHARE_WAIT_S,
        lender: Lender | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self._shares = Shares(limit)
        self._wait_s = wait_s
        self._share_wait_s = share_wait_s
        self._waiting: dict[asyncio.Future[None], str] = {}  # the key of each waiter, oldest first
        self._waiting_by_key: Counter[str] = Counter()
        self._lender = lender
        if lender:
            lender.begin(limit, self)

    def take(self, key: str) -> bool:
        """Whether there is a slot now. Every slot that is taken needs a `leave`."""
        return self._shares.take(key, self._now_s())

    async def enter(self, key: str) -> bool:
        """Whether there is a slot, now or within a moment. Every `enter` that returns True needs a `leave`."""
        if self.take(key):
            return True
        is_modest = self._shares.is_within_share(key, self._waiting_by_key[key] + 1)
        if is_modest or len(self._waiting) < self._shares.ceiling:
            self._waiting_by_key[key] += 1
            if self._lender:
                self._lender.need_more()
            try:
                if await self._wait(key, self._share_wait_s if is_modest else self._wait_s):
                    return True
            finally:
                self._waiting_by_key[key] -= 1
                if not self._waiting_by_key[key]:
                    del self._waiting_by_key[key]
        self._shares.want(key, self._now_s())
        return False

    @property
    def taken(self) -> int:
        return self._shares.taken

    @property
    def limit(self) -> int:
        """The most that may be taken here now."""
        return self._shares.limit

    @property
    def ceiling(self) -> int:
        """The most that may be taken: here, or in the whole fleet if its slots are lent."""
        return self._shares.ceiling

    @property
    def is_lent(self) -> bool:
        return self._lender is not None

    def leave(self, key: str) -> None:
        self._shares.release(key)
        if self._waiting:
            self._let_in()

    def change_limit(self, limit: int) -> None:
        if self._lender:
            self._lender.change_ceiling(limit)
        else:
            self.allow(SlotLease(limit, limit))

    def allow(self, allowance: SlotLease) -> None:
        self._shares.allow(allowance)
        self._let_in()

    def use(self) -> Use:
        return self._shares.use(self._waiting_by_key, self._now_s())

    async def _wait(self, key: str, wait_s: float) -> bool:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = key
        timer = loop.call_later(wait_s, self._give_up, turn)
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
        now_s = self._now_s()
        while self._waiting and self._shares.taken < self._shares.limit:
            turn = min(self._waiting, key=lambda turn: self._shares.held_by(self._waiting[turn]))
            if not self._shares.take(self._waiting[turn], now_s):
                return
            del self._waiting[turn]
            turn.set_result(None)


async def wait_for_slot(slots: Slots, key_id: str, metrics: Metrics) -> None:
    """Take a slot for one chat; 429 if none is free within a moment."""
    began_s = time.monotonic()
    is_given = await slots.enter(key_id)
    metrics.waits.add("slot", time.monotonic() - began_s)
    if not is_given:
        metrics.refused.labels("slots").inc()
        raise RateLimited("The service is saturated. Retry shortly.", SATURATED_RETRY_S, "slots")
