"""The one writer of a process: whatever waits is written in one transaction, and answered only when it is durable.

Holds that the store cannot take now fail and are the caller's to refuse. Ends (a settlement or a release) never fail:
they wait here until the store takes them, whether or not anyone still waits for them, so that neither a cancelled
request nor a stalled store loses one. A process that dies leaves open holds, which any other ends by `sweep`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

import msgspec

from cadenza.core.records import Usage
from cadenza.observe import Observer, places
from cadenza.store import batches, ledger
from cadenza.store.batches import Answer, Move
from cadenza.store.database import Database, StoreUnavailable
from cadenza.store.ledger import End, Ended, Held, Hold, Insufficient, OpenHold, Repeated
from cadenza.store.owners import KEEP_EVERY_S, Owner

BATCH_MAX = 128
BRIEF_MARKS = 100
MARKS_AT_ONCE = 50  # to be counted before others have their turn
RETRY_S = 0.25
MARK_EVERY_S = 0.5
MARK_FROM_S = 1.0  # what has run for less is not worth the count
SWEEP_EVERY_S = 15.0


class Delivery(Protocol):
    """What a running request has delivered so far."""

    @property
    def has_delivered(self) -> bool: ...

    async def count(self) -> Usage:
        """The tokens of its prompt, and of what was delivered."""


class Waiting(msgspec.Struct):
    """A hold or an end, and who waits for it to be durable."""

    move: Move
    answer: "asyncio.Future[Answer]"


class Running(msgspec.Struct):
    """A request with an open hold: what it has delivered, and how much of that is written."""

    hold: OpenHold
    delivery: Delivery
    since_s: float
    marked_tokens: int = 0


class LedgerWriter:
    """Holds and ends of this process, group-committed."""

    def __init__(self, db: Database, observer: Observer) -> None:
        self._db = db
        self._log = observer.log
        self._metrics = observer.metrics
        self._at = observer.at
        self._owner = Owner(db)
        self._waiting: list[Waiting] = []
        self._running: dict[str, Running] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # marks and batches touch the same holds: one at a time
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._owner.start()
        await self._sweep()
        self._tasks = [
            asyncio.create_task(self._write_forever()),
            asyncio.create_task(self._every(MARK_EVERY_S, self._mark)),
            asyncio.create_task(self._every(SWEEP_EVERY_S, self._sweep)),
            asyncio.create_task(self._every(KEEP_EVERY_S, self._owner.keep)),
        ]

    async def stop(self) -> None:
        """What waits is written first; what cannot be is left to be swept."""
        await asyncio.gather(*self._endings, return_exceptions=True)
        writing, *others = self._tasks
        for task in others:
            task.cancel()
        self._is_stopping = True
        self._wake.set()
        await asyncio.gather(writing, *others, return_exceptions=True)
        await self._owner.stop()

    async def hold(self, hold: Hold, delivery: Delivery) -> Held | Insufficient | Repeated:
        """StoreUnavailable where the store does not take it."""
        waiting = self._enqueue(Move(hold))
        try:
            answer = await waiting
        except asyncio.CancelledError:
            is_answered = waiting.done() and not waiting.cancelled() and not waiting.exception()
            if is_answered and isinstance(waiting.result(), Held):
                self.end(abandoned(hold))  # cancelled in the instant between the answer and its hearing
            raise
        assert not isinstance(answer, Ended)
        if isinstance(answer, Held):
            taken = OpenHold.of(hold, answer.allowance_tokens)
            self._running[hold.request_id] = Running(taken, delivery, time.monotonic())
        return answer

    def end(self, end: End) -> "asyncio.Future[Answer]":
        """Queued at once: it will be written even if nobody awaits the answer."""
        running = self._running.pop(end.request_id, None)
        return self._enqueue(Move(end, running.hold if running else None))

    def run_to_completion(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Have something ended that takes a moment, whoever is cancelled meanwhile."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _enqueue(self, move: Move) -> "asyncio.Future[Answer]":
        waiting = Waiting(move, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake.set()
        return waiting.answer

    async def _write_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                if not await self._commit(batch):
                    if self._is_stopping:
                        return
                    await asyncio.sleep(RETRY_S)
            if self._is_stopping:
                return

    async def _commit(self, batch: list[Waiting]) -> bool:
        """One transaction; False where the store did not take it."""
        moves = [waiting.move for waiting in batch]
        self._at("ledger-commit")
        try:
            async with self._turn:
                answers = await self._db.transact(
                    lambda connection: batches.apply(connection, moves, self._owner.name), is_brief=True
                )
        except StoreUnavailable as error:
            self._put_back(batch, error)
            self._metrics.ledger_retries.inc()
            self._log.warning("the store did not take a batch of the ledger", moves=len(batch), reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 the writer's loop: one bad move must not stop the others
            return await self._commit_one_by_one(batch, error)
        self._at("ledger-committed")
        self._metrics.ledger_commits.inc()
        for waiting, answer in zip(batch, answers, strict=True):
            self._answer(waiting, answer)
        return True

    def _put_back(self, batch: list[Waiting], error: StoreUnavailable) -> None:
        """Ends wait for the next try. Holds fail, those too that wait behind them.

        A hold that was tried is released, in case the store took it and only its answer was lost.
        """
        tried = [waiting.move.what for waiting in batch if isinstance(waiting.move.what, Hold)]
        for waiting in (*batch, *self._waiting):
            if isinstance(waiting.move.what, Hold) and not waiting.answer.done():
                waiting.answer.set_exception(error)
        self._waiting = [waiting for waiting in (*batch, *self._waiting) if isinstance(waiting.move.what, End)]
        for hold in tried:
            self._enqueue(Move(abandoned(hold)))

    async def _commit_one_by_one(self, batch: list[Waiting], error: Exception) -> bool:
        if len(batch) > 1:
            for number, waiting in enumerate(batch, start=1):
                if not await self._commit([waiting]):
                    self._waiting[:0] = batch[number:]
                    return False
            return True
        if not batch[0].answer.done():
            batch[0].answer.set_exception(error)
        self._metrics.ledger_refused.inc()
        self._log.error("the ledger refused a move", move=type(batch[0].move.what).__name__, places=places(error))
        return True

    def _answer(self, waiting: Waiting, answer: Answer) -> None:
        if isinstance(answer, Ended) and answer.short_nano:
            self._metrics.ledger_short.inc(answer.short_nano)
            self._log.warning("an account could not pay all that was due", short_nano=answer.short_nano)
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
        elif isinstance(waiting.move.what, Hold) and isinstance(answer, Held):  # who wanted it has gone meanwhile
            self.end(abandoned(waiting.move.what))

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except StoreUnavailable as error:
                self._log.warning("the store did not answer the ledger", reason=str(error))
            except Exception as error:  # noqa: BLE001 the writer's loop: it goes on, and says where it stumbled
                self._log.error("internal error", places=places(error))

    async def _mark(self) -> None:
        """What streams have delivered, so that a crash leaves it known. Nothing to do per chunk, or for short ones."""
        old_s, news = time.monotonic() - MARK_FROM_S, dict[str, Usage]()
        for number, (request_id, running) in enumerate(list(self._running.items())):
            if number % MARKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if running.since_s < old_s and running.delivery.has_delivered:
                counted = await running.delivery.count()
                if counted.completion_tokens > running.marked_tokens:
                    news[request_id] = counted
        if news:
            async with self._turn:
                await self._db.transact(
                    lambda connection: ledger.mark_delivered(connection, news), is_brief=len(news) < BRIEF_MARKS
                )
            for request_id, counted in news.items():
                if marked := self._running.get(request_id):
                    marked.marked_tokens = counted.completion_tokens

    async def _sweep(self) -> None:
        """End the holds of processes that are gone; those of the living are never touched."""
        now_ms = time.time_ns() // 1_000_000
        names = {*await self._db.transact(ledger.owners_with_open_holds), *self._owner.names_left()}
        for name in await self._owner.find_gone(names):
            await self._sweep_one(name, now_ms)
        await self._db.transact(lambda connection: ledger.forget_old_keys(connection, now_ms))

    async def _sweep_one(self, name: str, now_ms: int) -> None:
        async with self._owner.lock_of(name) as is_gone:
            if not is_gone:
                return
            if ended := await self._db.transact(lambda connection: ledger.end_holds_of(connection, name, now_ms)):
                self._log.warning("ended the holds of a process that is gone", holds=ended)


def abandoned(hold: Hold) -> End:
    """The end of a hold whose request left before anything was asked."""
    now_ms = time.time_ns() // 1_000_000
    return End(hold.request_id, hold.account_id, None, "", "", 499, None, max(0, now_ms - hold.started_at), now_ms)
