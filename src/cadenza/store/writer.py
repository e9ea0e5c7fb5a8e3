"""Writes the ledger for one process. Everything that waits goes into one transaction, and callers are answered
only when it is durable (group commit).

A hold fails when the store cannot take it; the caller refuses the request. An outcome never fails: it waits until the
store takes it, even if its caller is gone, so neither a cancelled request nor a stalled store loses a charge. The
open holds of a process that died are ended by the sweep of any other process.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

import msgspec
from sqlalchemy import select

from cadenza.core.records import DISCONNECTED_STATUS, Outcome
from cadenza.observe import Observer, places
from cadenza.store import batches, ledger, processes, schema
from cadenza.store.backlog import Backlog, Waiting
from cadenza.store.batches import Answer, Move
from cadenza.store.ledger import Ended, Held, Hold, Insufficient, OpenHold, Repeated
from cadenza.store.marks import Delivery, Marks
from cadenza.store.processes import Presence
from cadenza.store.schema import holds
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreUnavailable, Transaction

BATCH_MAX = 128
STOPPED_OWNERS = Statement(
    select(holds.c.owner)
    .where(holds.c.state == ledger.OPEN, holds.c.owner.not_in(select(schema.processes.c.name)))
    .distinct()
)


class Pace(msgspec.Struct, frozen=True):
    """The periods of the writer's background work, in seconds."""

    retry_s: float = 0.25  # after the store did not take a batch
    mark_every_s: float = 0.5
    mark_after_s: float = 1.0  # a shorter request is not worth counting
    sweep_every_s: float = 15.0


USUAL_PACE = Pace()


class LedgerWriter:
    """Takes and ends the holds of this process."""

    def __init__(self, store: Store, observer: Observer, pace: Pace = USUAL_PACE) -> None:
        self._store = store
        self._observer = observer
        self._pace = pace
        self.presence = Presence(store)
        self._backlog = Backlog()
        self._open: dict[str, OpenHold] = {}
        self._marks = Marks(store, pace.mark_after_s)
        self._endings: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # marks and batches change the same holds: one at a time
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.presence.start()
        await self.sweep()
        pace = self._pace
        self._tasks = [
            asyncio.create_task(self._write_forever()),
            asyncio.create_task(self._every(pace.mark_every_s, self.mark)),
            asyncio.create_task(self._every(pace.sweep_every_s, self.sweep)),
        ]

    async def stop(self) -> None:
        """Write everything that waits, then stop. The sweep of another process ends what the store does not take."""
        await asyncio.gather(*self._endings, return_exceptions=True)
        writing, *others = self._tasks
        for task in others:
            task.cancel()
        self._is_stopping = True
        self._backlog.wake()
        await asyncio.gather(writing, *others, return_exceptions=True)
        await self.presence.stop()

    async def hold(self, hold: Hold) -> Held | Insufficient | Repeated:
        """Take a hold; StoreUnavailable if the store does not take it."""
        waiting = self._backlog.add(Move(hold))
        try:
            answer = await waiting
        except asyncio.CancelledError:
            is_answered = waiting.done() and not waiting.cancelled() and not waiting.exception()
            if is_answered and isinstance(waiting.result(), Held):
                self._release(hold)  # cancelled after the answer was given and before it was received
            raise
        assert not isinstance(answer, Ended)
        if isinstance(answer, Held):
            self._open[hold.completion_id] = OpenHold.of(hold, answer.allowance_tokens)
        return answer

    def track(self, completion_id: str, delivery: Delivery) -> None:
        """From now on, mark what the request has delivered, until its hold ends. Only an open hold is tracked."""
        if completion_id in self._open:
            self._marks.track(completion_id, delivery)

    def end(self, outcome: Outcome) -> "asyncio.Future[Answer]":
        """End the hold of a request. It is queued at once and will be written even if no caller awaits the answer.

        Once it is durable, the outcome is also counted and logged.
        """
        self._marks.forget(outcome.completion_id)
        hold = self._open.pop(outcome.completion_id, None)
        return self._backlog.add(Move(outcome, hold, is_recorded=True))

    def _release(self, hold: Hold) -> None:
        """End a hold whose request was cancelled or refused before it got the answer. The request records itself."""
        self._backlog.add(Move(abandoned(hold), self._open.pop(hold.completion_id, None)))

    def run_to_completion(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work that ends a hold as a task that `stop` waits for, even if its caller is cancelled."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    async def drained(self) -> None:
        """Wait until everything queued so far is durable and answered."""
        await asyncio.gather(*self._endings, return_exceptions=True)
        await self._backlog.drained()

    async def mark(self) -> None:
        """Write what the tracked requests have delivered since their last mark."""
        if counted := await self._marks.count():
            async with self._turn:
                await self._marks.write(counted)

    async def sweep(self) -> None:
        """End the open holds of dead processes and forget old idempotency keys."""
        now_ms = time.time_ns() // 1_000_000
        for name in await self.presence.find_dead():
            await self._sweep(name, now_ms)
        for (name,) in await self._store.rows(STOPPED_OWNERS, {}):
            outcomes = await self._store.transact(partial(ledger.end_holds_of, owner=name, now_ms=now_ms))
            self._record(name, outcomes)
        await self._store.transact(lambda tx: ledger.forget_old_keys(tx, now_ms))

    async def _sweep(self, name: str, now_ms: int) -> None:
        def sweep(tx: Transaction) -> list[Outcome]:
            if not self.presence.claim(tx, name):
                return []
            processes.remove(tx, name)
            return ledger.end_holds_of(tx, name, now_ms)

        self._record(name, await self._store.transact(sweep))

    def _record(self, name: str, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._observer.log.warning("ended the holds of a process that died", process=name, holds=len(outcomes))
        for outcome in outcomes:
            self._observer.record(outcome)

    async def _write_forever(self) -> None:
        while True:
            await self._backlog.wait_for_more()
            while self._backlog:
                if not await self._commit(self._backlog.take(BATCH_MAX)):
                    if self._is_stopping:
                        return
                    await asyncio.sleep(self._pace.retry_s)
            self._backlog.set_drained()
            if self._is_stopping:
                return

    async def _commit(self, batch: list[Waiting]) -> bool:
        """Write a batch in one transaction. Return False if the store did not take it."""
        moves = [waiting.move for waiting in batch]
        self._observer.at("ledger-commit")
        try:
            async with self._turn:
                answers = await self._store.transact(
                    lambda tx: batches.apply(tx, moves, self.presence.name), is_brief=True
                )
        except StoreUnavailable as error:
            self._fail(batch, error)
            return False
        except Exception as error:  # noqa: BLE001 the writer's loop: one bad move must not stop the others
            return await self._commit_one_by_one(batch, error)
        self._observer.at("ledger-committed")
        self._observer.metrics.ledger_commits.inc()
        for waiting, answer in zip(batch, answers, strict=True):
            self._answer(waiting, answer)
        return True

    def _fail(self, batch: list[Waiting], error: StoreUnavailable) -> None:
        """Keep outcomes for the next try and fail all holds, including those that wait behind this batch.

        A hold of this batch is released later: the store may have taken it and only its answer was lost.
        """
        self._observer.metrics.ledger_retries.inc()
        self._observer.log.warning("the store did not take a batch of the ledger", moves=len(batch), reason=str(error))
        self._backlog.put_back(batch)
        self._backlog.fail_holds(error)
        for waiting in batch:
            if isinstance(waiting.move.what, Hold):
                self._release(waiting.move.what)

    async def _commit_one_by_one(self, batch: list[Waiting], error: Exception) -> bool:
        if len(batch) > 1:
            for number, waiting in enumerate(batch, start=1):
                if not await self._commit([waiting]):
                    self._backlog.put_back(batch[number:])
                    return False
            return True
        [refused] = batch
        if not refused.answer.done():
            refused.answer.set_exception(error)
        self._observer.metrics.ledger_refused.inc()
        what = refused.move.what
        self._observer.log.error(
            "the ledger refused a move",
            move="hold" if isinstance(what, Hold) else "outcome",
            completion_id=what.completion_id,
            places=places(error),
        )
        return True

    def _answer(self, waiting: Waiting, answer: Answer) -> None:
        what = waiting.move.what
        if isinstance(answer, Ended) and answer.short_nano:
            self._observer.metrics.ledger_short.inc(answer.short_nano)
            self._observer.log.warning(
                "an account could not pay all that was due",
                completion_id=what.completion_id,
                short_nano=answer.short_nano,
            )
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
        elif isinstance(what, Hold) and isinstance(answer, Held):  # its caller was cancelled
            self._release(what)
        if isinstance(what, Outcome) and waiting.move.is_recorded and isinstance(answer, Ended) and answer.is_first:
            asyncio.get_running_loop().call_soon(self._observer.record, what)  # after the requests that were answered

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        log = self._observer.log
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except StoreUnavailable as error:
                log.warning("the store did not answer the ledger", reason=str(error))
            except Exception as error:  # noqa: BLE001 the writer's loop: it goes on, and logs where it failed
                log.error("internal error", places=places(error))


def abandoned(hold: Hold) -> Outcome:
    """Build the outcome of a request whose client left before an upstream was asked."""
    now_ms = time.time_ns() // 1_000_000
    return Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        endpoint=ledger.ENDPOINT,
        status=DISCONNECTED_STATUS,
        duration_ms=max(0, now_ms - hold.started_at),
        ended_at=now_ms,
    )
