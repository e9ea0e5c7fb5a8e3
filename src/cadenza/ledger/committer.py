"""Writes what waits for the ledger: everything that is there goes into one transaction (group commit).

Postgres has several batches in flight, of different accounts. A batch waits for locked accounts for LOCK_S; those that
are still locked are set aside, so that they do not delay the others. One connection waits for their locks, one account
after the other, and another one writes all accounts that it finds unlocked, every PROBE_EVERY_S. A batch whose result
is unknown is written again: its ends are uncertain then, and the store is asked whether it has them. If another process
has swept this one, the store refuses every batch under its name: this process registers under a new name, and what it
held under the old one ends late.
"""

import asyncio
import enum
import time
from collections.abc import Callable, Iterable

import msgspec
from sqlalchemy import bindparam, select

from cadenza.core.records import DISCONNECTED_STATUS, Outcome
from cadenza.fleet.presence import Presence
from cadenza.ledger import transaction
from cadenza.ledger.backlog import Answer, Backlog, Waiting, fail, fail_hold
from cadenza.ledger.charging import LOST_STATUS
from cadenza.ledger.reserves import Reserves
from cadenza.ledger.rules import End, Ended, Held, Hold, OpenHold
from cadenza.ledger.sweeps import ENDPOINT
from cadenza.ledger.transaction import AccountMoves, Applied, WantedHold
from cadenza.observe import Observer, places
from cadenza.store.schema import processes
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, StoreUnavailable

BATCH_MAX = 128
BATCHES_AT_ONCE = 4  # on Postgres; SQLite has one writer
BATCH_LEAST = 64  # for another batch beside one in flight: fewer moves wait, and share the next commit
LOCK_S = 0.1  # how long a batch waits for accounts that another process is writing
PROBE_EVERY_S = 0.1
LOOK_EVERY_S = 0.25  # how often moves that wait too long are looked for
REGISTERED = Statement(select(processes.c.name).where(processes.c.name == bindparam("of"), processes.c.beats >= 0))

Moves = dict[str, tuple[AccountMoves, list[Waiting], list[Waiting]]]  # with the callers of its ends and of its holds


class BatchMode(enum.Enum):
    """How long a batch waits for locked accounts. One batch at a time is written in ALONE, and one in PROBE."""

    SHARED = "shared"  # for LOCK_S; then the locked ones are left out
    ALONE = "alone"  # one account, as long as the store waits for a lock
    PROBE = "probe"  # not at all


class Committer:
    """The one writer of a process's ledger. It calls `on_swept` when another process has swept this one."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        presence: Presence,
        reserves: Reserves,
        on_swept: Callable[[], None],
        retry_s: float,
    ) -> None:
        self._store = store
        self._observer = observer
        self._presence = presence
        self._reserves = reserves
        self._on_swept = on_swept
        self._retry_s = retry_s
        self._backlog = Backlog()
        self._running: set[asyncio.Task[None]] = set()
        self._special: dict[BatchMode, asyncio.Task[None]] = {}  # the batches in ALONE and PROBE
        self._turn = asyncio.Lock()  # to begin again
        self._is_stopping = False
        self.has_failed = False  # the store did not take the last batch

    def hold_in_memory(self, hold: Hold) -> Held | None:
        """Hold credit inside the reserve, if it covers the hold.

        While the store takes no charges, or the account is locked, no reserve is used: a request that cannot be charged
        must not begin. An idempotency key and a hold of a spend cap are always written.
        """
        if self.has_failed or hold.idempotency_digest or hold.is_capped or not self._presence.is_fresh:
            return None
        if self._backlog.is_aside(hold.account_id):
            return None
        return self._reserves.hold(hold)

    def hold(self, hold: Hold, *, is_final: bool) -> "asyncio.Future[Answer]":
        return self._backlog.add(Waiting(hold.account_id, _future(), hold=hold, is_final=is_final))

    def end(self, end: End, *, process: str, is_recorded: bool) -> "asyncio.Future[Answer]":
        """End a request whose hold was taken under this name of the process."""
        waiting = Waiting(end.hold.account_id, _future(), end=end, is_recorded=is_recorded, process=process)
        return self._backlog.add(waiting)

    def resize(self, account_id: str) -> None:
        """Give the reserve of an account the size that it should have now. Every move of it does so."""
        if not self._backlog.has_moves_of(account_id):
            self._backlog.add(Waiting(account_id, _future()))

    def fail_late(self, wait_s: float) -> None:
        """Fail the callers of moves that have waited for longer. To be called every LOOK_EVERY_S.

        Their ends stay and will be written; a hold that was taken meanwhile is given back. If accounts that are not
        locked wait, the store hangs: no reserve is used until it has taken a batch again.
        """
        late = self._backlog.late(round(wait_s / LOOK_EVERY_S))
        if any(waiting.hold or waiting.end for waiting in late):
            self._observer.log.warning("the store did not answer the ledger in time", moves=len(late))
        for waiting in late:
            fail(waiting, StoreUnavailable(f"The store did not answer within {wait_s:g} seconds."))
        self.has_failed = self.has_failed or not all(self._backlog.is_aside(waiting.account_id) for waiting in late)

    async def drained(self) -> None:
        await self._backlog.drained()

    async def run(self) -> None:
        """Write until `stop`. Then write what waits, once, and return."""
        while True:
            await self._backlog.wait_for_more()
            if self._store.writes_in_parallel:
                self._start_batches()
            else:
                while batch := self._backlog.take(BATCH_MAX):
                    await self._write(batch, BatchMode.ALONE)
                    if self._is_stopping and self.has_failed:
                        return
            if self._is_stopping and (self._backlog.is_empty or self.has_failed):
                await asyncio.gather(*self._running, *self._special.values())
                return

    def stop(self) -> None:
        self._is_stopping = True
        self._backlog.wake()

    def _start_batches(self) -> None:
        while len(self._running) < BATCHES_AT_ONCE and (not self._running or len(self._backlog) >= BATCH_LEAST):
            if not (batch := self._backlog.take(BATCH_MAX)):
                break
            task = self._start(batch, BatchMode.SHARED)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        for mode, take in ((BatchMode.ALONE, self._backlog.take_alone), (BatchMode.PROBE, self._backlog.take_probes)):
            is_free = mode not in self._special or self._special[mode].done()
            if is_free and (batch := take(BATCH_MAX)):
                self._special[mode] = self._start(batch, mode)

    def _start(self, batch: list[Waiting], mode: BatchMode) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write(batch, mode))
        task.add_done_callback(lambda _: self._backlog.wake())
        return task

    async def _write(self, batch: list[Waiting], mode: BatchMode) -> None:
        """Write a batch; what the store did not take is put back and tried again after a pause."""
        try:
            if not await self._commit(batch, mode) and not self._is_stopping:
                await asyncio.sleep(self._retry_s)
            elif mode is BatchMode.PROBE and any(self._backlog.is_aside(waiting.account_id) for waiting in batch):
                await asyncio.sleep(PROBE_EVERY_S)
        finally:
            self._backlog.done(batch)

    async def _commit(self, batch: list[Waiting], mode: BatchMode) -> bool:
        """Write a batch in one transaction. Return False if the store did not take it."""
        moves, process = self._build(batch), self._presence.name
        self._observer.at("ledger-commit")
        try:
            applied = await self._apply(process, [move for move, _, _ in moves.values()], mode)
        except StoreUnavailable as error:
            if isinstance(error, StoreBusy) and mode is not BatchMode.ALONE:
                return await self._commit_by_account(batch, mode)
            self._fail(batch, error)
            return False
        except Exception as error:  # noqa: BLE001 the writer's loop: one bad move must not stop the others
            return await self._commit_apart(batch, process, error, mode)
        if process != self._presence.name:  # swept after this commit: its reserves are gone
            self._put_back(batch)
            return True
        self._observer.at("ledger-committed")
        if applied:  # empty if all accounts are locked
            self.has_failed = False
            self._observer.metrics.ledger_commits.inc()
        for account_id, (_, ends, holds) in moves.items():
            if account_id in applied:
                self._answer(applied[account_id], ends, holds)
                self._backlog.rejoin(account_id)
            else:
                self._backlog.set_aside(account_id)
                self._backlog.put_back([waiting for waiting in batch if waiting.account_id == account_id])
        return True

    async def _apply(self, process: str, moves: list[AccountMoves], mode: BatchMode) -> dict[str, Applied]:
        """Wait a moment for accounts that others are writing; then leave out those that are still locked."""
        if mode is not BatchMode.PROBE:
            lock_s = LOCK_S if mode is BatchMode.SHARED else None
            try:
                return await self._store.transact(
                    lambda tx: transaction.apply_moves(tx, process, moves), is_brief=True, lock_s=lock_s
                )
            except StoreBusy:
                if mode is BatchMode.ALONE:
                    raise
        return await self._store.transact(
            lambda tx: transaction.apply_moves(tx, process, moves, waits=False), lock_s=LOCK_S
        )

    async def _commit_by_account(self, batch: list[Waiting], mode: BatchMode) -> bool:
        """Another row of an account is locked, such as a mark. Write the others without it, and set it aside."""
        by_account: dict[str, list[Waiting]] = {}
        for waiting in batch:
            by_account.setdefault(waiting.account_id, []).append(waiting)
        if len(by_account) == 1:
            self._backlog.set_aside(batch[0].account_id)
            self._backlog.put_back(batch)
            return True
        groups = [*by_account.values()]
        for number, group in enumerate(groups, start=1):
            if not await self._commit(group, mode):
                self._backlog.put_back([waiting for rest in groups[number:] for waiting in rest])
                return False
        return True

    def _build(self, batch: list[Waiting]) -> Moves:
        """Group the moves by account. What a reserve covers by now is held in memory and answered at once."""
        moves: Moves = {}
        groups: dict[str, tuple[list[Waiting], list[Waiting]]] = {}
        for waiting in batch:
            ends, holds = groups.setdefault(waiting.account_id, ([], []))
            if waiting.end:
                if waiting.process != self._presence.name:
                    waiting.end = msgspec.structs.replace(waiting.end, is_uncertain=True, is_late=True)
                ends.append(waiting)
            elif waiting.hold and not waiting.answer.done():
                if held := self.hold_in_memory(waiting.hold):
                    waiting.answer.set_result(held)
                else:
                    holds.append(waiting)
        for account_id, (ends, holds) in groups.items():
            ended = [waiting.end for waiting in ends if waiting.end]
            wanted = [WantedHold(waiting.hold, waiting.is_final) for waiting in holds if waiting.hold]
            charged_nano = sum([_take_off_reserve(waiting) for waiting in ends])
            demand = self._reserves.demand(account_id, charged_nano, [one.hold for one in wanted])
            caps = self._reserves.caps.use(account_id, (end.hold.completion_id for end in ended))
            moves[account_id] = AccountMoves(account_id, demand, ended, wanted, caps), ends, holds
        return moves

    def _answer(self, applied: Applied, ends: list[Waiting], holds: list[Waiting]) -> None:
        taken_nano = [answer.amount_nano for answer in applied.answers if isinstance(answer, Held)]
        self._reserves.written(applied.account, taken_nano)
        if applied.account.has_caps or applied.account.id in self._reserves.caps:
            self._note_caps(applied, ends, holds)
        for waiting, ended in zip(ends, applied.ended, strict=True):
            self._answer_end(waiting, ended)
        for waiting, answer in zip(holds, applied.answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
            elif waiting.hold and isinstance(answer, Held):  # its caller was cancelled
                self.abandon(waiting.hold, answer)

    def _note_caps(self, applied: Applied, ends: list[Waiting], holds: list[Waiting]) -> None:
        caps = self._reserves.caps
        caps.written(applied.account.id)
        for waiting in ends:
            if waiting.end and waiting.end.hold.is_capped:
                caps.end(waiting.account_id, waiting.end.hold.completion_id)
        for waiting, answer in zip(holds, applied.answers, strict=True):
            if waiting.hold and isinstance(answer, Held) and answer.is_capped:
                caps.hold(waiting.hold, answer.amount_nano)

    def _answer_end(self, waiting: Waiting, ended: Ended) -> None:
        assert waiting.end
        outcome, metrics = waiting.end.outcome, self._observer.metrics
        if ended.short_nano:
            metrics.ledger_short.inc(ended.short_nano)
            self._observer.log.warning(
                "an account could not pay all that was due",
                completion_id=outcome.completion_id,
                short_nano=ended.short_nano,
            )
        if ended.is_lost:
            outcome = msgspec.structs.replace(outcome, status=LOST_STATUS)
            metrics.ledger_lost.inc()
            self._observer.log.warning(
                "a request was not charged in full, because its process was taken for dead",
                completion_id=outcome.completion_id,
                charged_nano=ended.charged_nano,
            )
        if ended.corrected_nano:
            self._observer.log.info(
                "a charge of a sweep was corrected",
                completion_id=outcome.completion_id,
                corrected_nano=ended.corrected_nano,
            )
        if not waiting.answer.done():
            waiting.answer.set_result(ended)
        if waiting.is_recorded:
            asyncio.get_running_loop().call_soon(self._observer.record, outcome)  # after the requests were answered

    def abandon(self, hold: Hold, held: Held) -> None:
        """End a hold whose request was cancelled before it got the answer. The request records itself."""
        self._reserves.end(hold.account_id, held.amount_nano, 0)
        open_hold = OpenHold.of(hold, held.amount_nano, is_capped=held.is_capped)
        self.end(End(abandoned(hold), open_hold, 0), process=self._presence.name, is_recorded=False)

    def _fail(self, batch: list[Waiting], error: StoreUnavailable) -> None:
        """Keep the ends for the next try and fail all holds, including those that wait behind this batch.

        A locked account fails only its own, and says nothing about the store.
        """
        is_locked = isinstance(error, StoreBusy)
        self.has_failed = self.has_failed or self._is_stopping or not is_locked
        self._observer.metrics.ledger_retries.inc()
        self._observer.log.warning("the store did not take a batch of the ledger", moves=len(batch), reason=str(error))
        self._put_back([waiting for waiting in batch if not fail_hold(waiting, error)])
        for waiting in batch:
            if waiting.hold and waiting.hold.idempotency_digest:  # the store may have its key
                end = End(abandoned(waiting.hold), OpenHold.of(waiting.hold, 0), 0, is_uncertain=True)
                self.end(end, process=self._presence.name, is_recorded=False)
            elif waiting.hold and waiting.hold.is_capped:  # the store may have it
                self._reserves.caps.doubt(waiting.account_id, waiting.hold.key_id)
        if is_locked:
            for account_id in {waiting.account_id for waiting in batch}:
                self._backlog.fail_holds(error, account_id)
        else:
            self._backlog.fail_holds(error)

    def _put_back(self, batch: Iterable[Waiting]) -> None:
        """The result of a batch is unknown: its ends may have been written."""
        uncertain = [*batch]
        for waiting in uncertain:
            if waiting.end:
                waiting.end = msgspec.structs.replace(waiting.end, is_uncertain=True)
        self._backlog.put_back(uncertain)

    async def _commit_apart(self, batch: list[Waiting], process: str, error: Exception, mode: BatchMode) -> bool:
        """Write each move of a refused batch by itself. If this process was swept, it begins again first.

        An end may be refused because a sweep has written it: it is refused for good only if it was uncertain.
        """
        if isinstance(error, StoreRefused):
            try:
                has_rejoined = await self.rejoin_if_swept(process)
            except StoreUnavailable as away:
                self._fail(batch, away)
                return False
            if has_rejoined:
                self._put_back(batch)
                return True
        if len(batch) > 1 or (batch[0].end and not batch[0].end.is_uncertain):
            for number, waiting in enumerate(batch, start=1):
                if waiting.end:
                    waiting.end = msgspec.structs.replace(waiting.end, is_uncertain=True)
                if not await self._commit([waiting], mode):
                    self._put_back(batch[number:])
                    return False
            return True
        self._refuse(batch[0], error)
        return True

    async def rejoin_if_swept(self, process: str) -> bool:
        """If another process swept this one, register under a new name. Return whether that was done."""
        async with self._turn:
            if process != self._presence.name:  # another batch has noticed it
                return True
            if await self._store.row(REGISTERED, {"of": process}):
                return False
            self._on_swept()
            await self._presence.rejoin()
            return True

    def _refuse(self, refused: Waiting, error: Exception) -> None:
        if refused.end:
            self._reserves.caps.end(refused.account_id, refused.end.hold.completion_id)
        if not refused.answer.done():
            refused.answer.set_exception(error)
            refused.answer.exception()  # a change of size is awaited by nobody
        self._observer.metrics.ledger_refused.inc()
        what = refused.hold or (refused.end and refused.end.outcome)
        self._observer.log.error(
            "the ledger refused a move",
            move="hold" if refused.hold else "end" if refused.end else "resize",
            completion_id=what.completion_id if what else "",
            places=places(error),
        )


def abandoned(hold: Hold) -> Outcome:
    """Build the outcome of a request whose client left before an upstream was asked."""
    now_ms = time.time_ns() // 1_000_000
    return Outcome(
        request_id=hold.request_id,
        completion_id=hold.completion_id,
        account_id=hold.account_id,
        key_id=hold.key_id,
        class_id=hold.class_id,
        endpoint=ENDPOINT,
        status=DISCONNECTED_STATUS,
        duration_ms=max(0, now_ms - hold.started_at),
        ended_at=now_ms,
    )


def _take_off_reserve(waiting: Waiting) -> int:
    """What is due for an end, once: it may be written several times."""
    if waiting.end is None or waiting.is_off_reserve:
        return 0
    waiting.is_off_reserve = True
    return waiting.end.due_nano


def _future() -> "asyncio.Future[Answer]":
    return asyncio.get_running_loop().create_future()
