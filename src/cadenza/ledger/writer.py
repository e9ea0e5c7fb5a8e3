"""The ledger of one process: holds are taken in memory against reserves, and ended requests are charged in the store.

A hold that no reserve covers fails if the store cannot take it, and the caller refuses the request. An end is never
lost: it is retried until the store takes it, even if its caller is gone or was told after `wait_s` that there is no
answer. So neither a cancelled request nor a stalled store loses a charge. Any other process sweeps what this one leaves
behind if it dies.
"""

import asyncio
import contextlib
from collections.abc import Coroutine

import msgspec

from cadenza.core.money import NANO_PER_DOLLAR
from cadenza.core.records import Outcome
from cadenza.fleet.background import repeat
from cadenza.fleet.presence import Presence
from cadenza.ledger.backlog import Answer
from cadenza.ledger.cap_rows import HOLDS_OF_PROCESS
from cadenza.ledger.committer import POLL_INTERVAL_S, Committer
from cadenza.ledger.marks import Delivery, Marks, OpenHold
from cadenza.ledger.provider_costs import ProviderCosts
from cadenza.ledger.reserves import Reserves
from cadenza.ledger.rules import End, Ended, HeldCredit, Hold, HoldResult, Insufficient, Repeated, ReservedElsewhere
from cadenza.ledger.sweeps import Sweeper
from cadenza.ledger.timing import USUAL_TIMING, LedgerTiming
from cadenza.ledger.transaction import ASKED, RESERVED
from cadenza.observe import Observer
from cadenza.store.store import Store, StoreUnavailable


class LedgerWriter:
    """Takes and ends the holds of this process."""

    def __init__(
        self, store: Store, observer: Observer, presence: Presence, timing: LedgerTiming = USUAL_TIMING
    ) -> None:
        self.costs = ProviderCosts()
        self._store = store
        self._presence = presence
        self._observer = observer
        self._timing = timing
        self._elapsed_s = presence.host.elapsed_s
        self._reserves = Reserves(self._elapsed_s, timing.idle_s)
        self._committer = Committer(store, observer, presence, self._reserves, self._on_swept, timing.retry_s)
        self._open: dict[str, OpenHold] = {}
        self._marks = Marks(store, self._open, timing.mark_after_s, self._elapsed_s)
        self._sweeper = Sweeper(store, presence, observer)
        self._wake = asyncio.Event()  # set and replaced when a process announced something
        self._endings: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        presence.on_wake(self._woken)
        metrics, reserves = observer.metrics, self._reserves
        metrics.holds.set_function(lambda: len(self._open))
        metrics.reserves.set_function(lambda: len(reserves))
        metrics.reserved.labels("in_use").set_function(lambda: reserves.in_use_nano / NANO_PER_DOLLAR)
        metrics.reserved.labels("spare").set_function(lambda: reserves.spare_nano / NANO_PER_DOLLAR)

    async def start(self) -> None:
        await self._sweeper.sweep()
        self._committer.start()
        timing, log = self._timing, self._observer.log
        loops = [
            repeat(self.mark, timing.mark_every_s, log),
            repeat(self.sweep, timing.sweep_every_s, log),
            repeat(self._fail_late, POLL_INTERVAL_S, log),
            repeat(self._release_idle, timing.release_every_s, log),
            repeat(self._reconcile, timing.reconcile_every_s, log),
            self._answer_asks(),
        ]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """Write everything that waits, give back all reserves, and stop. Another process sweeps what is left."""
        await asyncio.gather(*self._endings, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        for account_id in self._reserves.close():
            self._committer.resize(account_id)
        await self._committer.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold_now(self, hold: Hold) -> HeldCredit | None:
        """Take a hold without waiting, if a reserve covers it."""
        assert hold.completion_id not in self._open
        held = self._committer.hold_in_memory(hold)
        if held is not None:
            self._open[hold.completion_id] = OpenHold(hold, held, self._presence.name)
        return held

    async def hold(self, hold: Hold) -> HeldCredit | Insufficient | Repeated:
        """Take a hold; StoreUnavailable if no reserve covers it and the store does not take it."""
        if held := self.hold_now(hold):
            return held
        process = self._presence.name  # before the store is asked: the name may have changed afterwards
        began_s = self._elapsed_s()
        answer = await self._take(hold)
        self._observer.metrics.waits.add("hold", self._elapsed_s() - began_s)
        if isinstance(answer, HeldCredit):
            assert answer.allowance_tokens <= hold.allowance_tokens + hold.extra_tokens
            self._open[hold.completion_id] = OpenHold(hold, answer, process)
        assert not isinstance(answer, ReservedElsewhere)
        return answer

    async def _take(self, hold: Hold) -> HoldResult:
        """Take a hold in the store. If the credit falls short, wait for what other processes give back.

        The store is asked again with each announcement, and every `ask_s`: it refuses the hold once no other process
        has credit to spare. A process that does not give back its own is waited for until `ask_most_s`.
        """
        until_s = self._elapsed_s() + max(self._timing.ask_s, self._timing.ask_most_s)
        while True:
            wake = self._wake  # before the store is asked: what is given back meanwhile is not missed
            answer = await self._take_once(hold)
            if not isinstance(answer, ReservedElsewhere):
                return answer
            assert not hold.is_final
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.ask_s):
                    await wake.wait()
            if self._elapsed_s() >= until_s:
                hold = msgspec.structs.replace(hold, is_final=True)

    async def _take_once(self, hold: Hold) -> HoldResult:
        waiting = self._committer.hold(hold)
        try:
            answer = await waiting
        except asyncio.CancelledError:
            is_answered = waiting.done() and not waiting.cancelled() and not waiting.exception()
            if is_answered and isinstance(held := waiting.result(), HeldCredit):
                self._committer.abandon(hold, held)  # cancelled before it received the answer
            raise
        assert not isinstance(answer, Ended)
        return answer

    def track(self, completion_id: str, delivery: Delivery) -> None:
        """Mark what the request delivers until its hold ends. Without an open hold, nothing is marked.

        Neither is a request that will end late: a sweep would charge it though its idempotency key is free again.
        """
        request = self._open.get(completion_id)
        if request and request.process == self._presence.name:
            assert request.delivery is None
            request.delivery, request.since_s = delivery, self._elapsed_s()

    def end(self, outcome: Outcome) -> "asyncio.Future[Answer]":
        """Charge a request and release its hold. The end is queued at once, and written even if no caller awaits it.

        The answer is StoreUnavailable if the store has not taken it after `wait_s`. Once it is durable, the outcome is
        also counted and logged.
        """
        ending = self._open.pop(outcome.completion_id)
        hold, held = ending.hold, ending.held
        assert outcome.account_id == hold.account_id
        due_nano, is_marked, cost_nano = hold.due_nano(outcome.usage), ending.may_have_mark, self.costs.of(outcome)
        self._reserves.end(hold.account_id, held.amount_nano, due_nano)
        end = End(outcome, hold, held.amount_nano, due_nano, is_marked, held.is_capped, provider_cost_nano=cost_nano)
        return self._committer.end(end, process=ending.process, is_recorded=True)

    def run_to_completion(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work that ends a hold as a task that `stop` waits for, even if its caller is cancelled."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def distrust_store(self) -> None:
        """Use no reserve until the store has taken a batch again: a check found that it takes no writes."""
        self._committer.has_failed = True

    async def drained(self) -> None:
        """Wait until everything queued so far is durable and answered."""
        await asyncio.gather(*self._endings, return_exceptions=True)
        await self._committer.drained()

    async def mark(self) -> None:
        """Write what the tracked requests have delivered since their last mark."""
        await self._marks.write(self._presence.name)

    async def sweep(self) -> None:
        """Sweep dead processes. If this one was swept itself, register it again first."""
        if self._presence.is_swept:
            await self._committer.rejoin_if_swept(self._presence.name)
        await self._sweeper.sweep()

    def _on_swept(self) -> None:
        """Another process took this one for dead and swept it. Requests continue, and end late."""
        self._observer.log.warning("this process was taken for dead and begins again", requests=len(self._open))
        self._reserves.lose()
        self._marks.lose()

    def _woken(self) -> None:
        wake, self._wake = self._wake, asyncio.Event()
        wake.set()

    async def _answer_asks(self) -> None:
        """Give back the unused part of a reserve as soon as another process asks for it."""
        wake = self._wake
        while True:
            await wake.wait()
            wake = self._wake  # before the tables are read: what is announced meanwhile is not missed
            if self._reserves:
                await self._release_reclaimed()

    async def _release_reclaimed(self) -> None:
        of_me = {"me": self._presence.name}
        with contextlib.suppress(StoreUnavailable):  # asked again at the next wake
            if await self._store.row(ASKED, of_me):
                for (account_id,) in await self._store.rows(ASKED, of_me):
                    self._reserves.reclaim(account_id)
                    self._committer.resize(account_id)

    async def _fail_late(self) -> None:
        self._committer.fail_late(self._timing.wait_s)

    async def _release_idle(self) -> None:
        for account_id in self._reserves.pass_time():
            self._committer.resize(account_id)

    async def _reconcile(self) -> None:
        """Give back reserves that the store has for this process and the process does not know, after a failover."""
        rows = await self._store.rows(RESERVED, {"me": self._presence.name})
        cap_holds = await self._store.rows(HOLDS_OF_PROCESS, {"process": self._presence.name})
        unknown = {account_id for (account_id,) in rows if account_id not in self._reserves}
        for account_id in unknown.union(self._reserves.caps.doubtful(cap_holds)):
            self._committer.resize(account_id)
