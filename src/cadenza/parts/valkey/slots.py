"""Leases slots of the fleet for this process, in Valkey. Requests get leased slots without a round trip.

Each report says how many slots are in use and wanted, and its answer is the new lease. A lease expires if it is not
renewed. Stance on failure: without Valkey the lease is used until shortly before it expires; then this process has its
share of all slots. It has its share at once if Valkey is lost while it gives slots back.
"""

import asyncio
import math

from cadenza.core.shares import SlotLease
from cadenza.fleet.shared import Borrower
from cadenza.parts.valkey.connection import PREFIX, Answer, ask
from cadenza.parts.valkey.link import Script, ValkeyLink, ValkeyTiming

SLOTS_KEY = f"{PREFIX}slots"
ANSWER_SIZE = 4  # lease, target, keys elsewhere, processes


class ValkeyLender:
    """The lease of this process.

    While a report is in flight this process keeps to `_limit`, which Valkey never lowers by itself: the answer may ask
    for less, and the next report says that it was given back. `_limit` is below `_leased` while slots are given back.
    """

    def __init__(self, link: ValkeyLink, timing: ValkeyTiming, processes: int, name: str) -> None:
        self.processes = processes  # that share the slots, as last reported
        self._link = link
        self._timing = timing
        self._name = name
        self._script = Script.read("slots.lua")
        self._ceiling = 0
        self._borrower: Borrower | None = None
        self._limit = 0
        self._leased = 0  # the limit that the last answer set
        self._keys_elsewhere = 0
        self._until_s = 0.0  # the end of the lease; zero if there is none
        self._was_leased = False
        self._reported_s = 0.0
        self._is_reporting = False
        self._is_needed = False  # another report must follow soon
        self._timer: asyncio.TimerHandle | None = None

    @property
    def share(self) -> int:
        """The slots of this process without Valkey."""
        return max(1, self._ceiling // self.processes)

    def begin(self, ceiling: int, borrower: Borrower) -> None:
        self._ceiling, self._borrower = ceiling, borrower
        self._use_share()

    def change_ceiling(self, ceiling: int) -> None:
        self._ceiling = ceiling
        if self._until_s:
            self._limit = self._leased = min(self._limit, ceiling)
            self._allow()
        self.need_more()

    def need_more(self) -> None:
        self._check_lease()
        self._report_soon()

    def start(self) -> None:
        """Send the first report; each schedules the next."""
        self._report()

    async def stop(self) -> None:
        """Give back the lease."""
        if self._timer:
            self._timer.cancel()
        self._timer = None
        await asyncio.gather(
            ask(self._link.send, "HDEL", SLOTS_KEY, self._name),
            ask(self._link.send, "PUBLISH", self._link.channel, f"free {self._name}"),
        )

    def on_message(self, message: bytes) -> None:
        """Handle a message: `short` if another process needs slots, `free` if one gave some back."""
        word, _, sender = message.decode(errors="replace").partition(" ")
        if sender == self._name or self._borrower is None:
            return
        use = self._borrower.use()
        if word == "short":
            if self._until_s and use.taken < self._limit:
                self._limit = use.taken  # until the answer, no request gets a slot that is about to be given back
                self._allow()
            self._report_soon()
        elif use.wanted:
            self._report_soon()

    def _report_soon(self) -> None:
        if self._is_reporting:
            self._is_needed = True
        else:
            self._report_in(self._reported_s + self._timing.gap_s - self._link.now_s())

    def _report_in(self, delay_s: float) -> None:
        if self._timer:  # it is started, and not stopped
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._report)

    def _report(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._timing.renew_s, self._report)
        self._check_lease()
        if self._is_reporting or self._borrower is None or not self._link.is_up:
            return
        use, most, standing = self._borrower.use(), self._leased, "leased"
        if not self._until_s:
            most, standing = (self._leased, "lapsed") if self._was_leased else (self._ceiling, "new")
            self._limit = use.taken
            self._allow()
        self._reported_s, self._is_reporting, self._is_needed = self._link.now_s(), True, False
        has = max(self._limit, use.taken)
        lease_ms = round(self._timing.lease_s * 1000)
        rest = (use.taken, use.wanted, use.keys, self._ceiling, lease_ms, self._link.channel)
        arguments = (self._name, standing, has, most, *rest)
        self._link.run(self._script, [SLOTS_KEY], arguments, ANSWER_SIZE, self._answered)

    def _answered(self, answer: Answer) -> None:
        assert self._borrower
        self._is_reporting = False
        if answer is None:
            self._check_lease()
            return
        lease, target, self._keys_elsewhere, self.processes = answer
        self._limit = self._leased = min(lease, target)
        self._until_s = self._reported_s + self._timing.lease_s - self._timing.lease_margin_s
        self._was_leased = True
        self._allow()
        use = self._borrower.use()
        if self._is_needed:
            self._report_soon()
        elif use.taken > target or (use.wanted and lease < target):
            self._report_in(self._timing.unsettled_s)
        else:
            self._report_in(self._timing.renew_s)

    def _check_lease(self) -> None:
        """End an expired lease. While Valkey answers, no slot is given until the answer to the next report."""
        if self._until_s and self._link.now_s() >= self._until_s:
            self._until_s, self._limit, self._leased = 0.0, self.share, self.share
        if not self._link.is_up and self._borrower and (not self._until_s or self._limit < self._leased):
            self._use_share()

    def _use_share(self) -> None:
        assert self._borrower
        self._until_s, self._limit, self._leased = 0.0, self.share, self.share
        self._borrower.allow(SlotLease(self._limit, self._limit))

    def _allow(self) -> None:
        assert self._borrower
        until_s = self._until_s or math.inf
        self._borrower.allow(SlotLease(self._limit, self._ceiling, self._keys_elsewhere, until_s))
