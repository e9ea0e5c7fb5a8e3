"""The group commit: everything that waits for the ledger is written in one transaction.

On Postgres several batches are in flight, each of different accounts. A batch waits LOCK_S for accounts that another
transaction has locked, and then sets them aside, so that they do not delay the others. One connection waits for their
locks, one account at a time, and another one writes those it finds unlocked, every PROBE_EVERY_S. A batch whose result
is unknown is written again: its ends are uncertain then, and the store is asked whether it has them. If another process
has swept this one, the store refuses every batch under its name (fencing): this process registers under a new name, and
the requests whose holds were taken under the old name end late.
"""

import asyncio
import enum
from collections.abc import Callable

import msgspec
from sqlalchemy import bindparam, select

from cadenza.core.records import DISCONNECTED_STATUS, Outcome
from cadenza.fleet.presence import Presence
from cadenza.ledger import transaction
from cadenza.ledger.backlog import Answer, Backlog, Move, fail, fail_hold
from cadenza.ledger.charging import LOST_STATUS
from cadenza.ledger.reserves import Reserves
from cadenza.ledger.rules import End, Ended, HeldCredit, Hold, broken_off
from cadenza.ledger.transaction import AccountMoves, Applied
from cadenza.observe import Observer, places
from cadenza.store.schema import processes
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, StoreUnavailable

BATCH_MAX = 128
BATCHES_AT_ONCE = 4  # on Postgres; SQLite has one writer
BATCH_LEAST = 64  # to start another batch beside one in flight: fewer moves wait, and share the next commit
LOCK_S = 0.1  # how long a batch waits for accounts that another process is writing
PROBE_EVERY_S = 0.1
POLL_INTERVAL_S = 0.25  # how often moves that wait too long are looked for
REGISTERED = Statement(select(processes.c.name).where(processes.c.name == bindparam("of"), processes.c.beats >= 0))

Batch = dict[str, tuple[AccountMoves, list[Move], list[Move]]]  # by account: for the transaction, the ends, the holds


class BatchMode(enum.Enum):
    """How long a batch waits for locked accounts. One batch at a time is written in ALONE, and one in PROBE."""

    SHARED = "shared"  # for LOCK_S; then the locked ones are left out
    ALONE = "alone"  # one account, as long as the store waits for a lock
    PROBE = "probe"  # not at all


class Committer:
    """The only writer of a process's ledger. It calls `on_swept` when another process has swept this one."""

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
        self._running: dict[asyncio.Task[None], BatchMode] = {}  # the batches in flight
        self._at_once = BATCHES_AT_ONCE if store.writes_in_parallel else 1
        self._loop = asyncio.get_running_loop()
        self._rejoining = asyncio.Lock()
        self._starting: asyncio.Handle | None = None  # the call of `_start_batches` in the next turn of the event loop
        self._is_running = False
        self._is_stopping = False
        self.has_failed = False  # the store did not take the last batch
        observer.metrics.ledger_waiting.set_function(lambda: len(self._backlog))
        observer.metrics.ledger_longest_wait.set_function(lambda: self._backlog.looks_most * POLL_INTERVAL_S)

    def hold_in_memory(self, hold: Hold) -> HeldCredit | None:
        """Hold credit inside the reserve, if it covers the hold.

        While the store takes no charges, or the account is locked, no reserve is used: a request that cannot be charged
        must not begin. A hold with an idempotency key or a spend cap is always written.
        """
        if self.has_failed or hold.idempotency_digest or hold.is_capped or not self._presence.is_fresh:
            return None
        if self._backlog.is_aside(hold.account_id):
            return None
        return self._reserves.hold(hold)

    def hold(self, hold: Hold) -> "asyncio.Future[Answer]":
        return self._add(Move(hold.account_id, self._loop.create_future(), hold))

    def end(self, end: End, *, process: str, is_recorded: bool) -> "asyncio.Future[Answer]":
        """End a request whose hold was taken when this process had the name `process`."""
        return self._add(Move(end.hold.account_id, self._loop.create_future(), None, end, process, is_recorded))

    def resize(self, account_id: str) -> None:
        """Resize the reserve of an account to what is needed now. Every move of the account does so too."""
        if not self._backlog.has_moves_of(account_id):
            self._add(Move(account_id, self._loop.create_future()))

    def fail_late(self, wait_s: float) -> None:
        """Fail the callers of moves that have waited for longer than `wait_s`. To be called every POLL_INTERVAL_S.

        Ends stay queued and will be written; a hold that was taken meanwhile is given back. If moves of unlocked
        accounts wait, the store hangs: no reserve is used until it has taken a batch again.
        """
        late = self._backlog.late(round(wait_s / POLL_INTERVAL_S))
        if any(move.hold or move.end for move in late):
            self._observer.log.repeated("the store did not answer the ledger in time", moves=len(late))
        for move in late:
            fail(move, StoreUnavailable(f"The store did not answer within {wait_s:g} seconds."))
        self.has_failed = self.has_failed or not all(self._backlog.is_aside(move.account_id) for move in late)

    async def drained(self) -> None:
        await self._backlog.drained()

    def start(self) -> None:
        self._is_running = True
        self._start_batches()

    async def stop(self) -> None:
        """Write what waits, once."""
        self._is_stopping = True
        self._start_batches()
        while self._running:
            await asyncio.wait(self._running)
        self._is_running = False

    def _add(self, move: Move) -> "asyncio.Future[Answer]":
        self._backlog.add(move)
        if self._starting is None:  # in the next turn of the event loop, so that the moves of this turn share a batch
            self._starting = self._loop.call_soon(self._start_batches)
        return move.answer

    def _start_batches(self) -> None:
        self._starting = None
        if not self._is_running:
            return
        modes = [*self._running.values()]
        shared = modes.count(BatchMode.SHARED)
        while shared < self._at_once and (not shared or len(self._backlog) >= BATCH_LEAST):
            if not (batch := self._backlog.take(BATCH_MAX)):
                break
            self._start(batch, BatchMode.SHARED)
            shared += 1
        if not self._store.writes_in_parallel:  # no account is locked by itself, so none is set aside
            return
        for mode, take in ((BatchMode.ALONE, self._backlog.take_alone), (BatchMode.PROBE, self._backlog.take_probes)):
            if mode not in modes and (batch := take(BATCH_MAX)):
                self._start(batch, mode)

    def _start(self, batch: list[Move], mode: BatchMode) -> None:
        task = self._loop.create_task(self._write(batch, mode))
        self._running[task] = mode
        task.add_done_callback(self._batch_ended)

    def _batch_ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and not (self._is_stopping and self.has_failed):
            self._start_batches()

    async def _write(self, batch: list[Move], mode: BatchMode) -> None:
        """Write a batch; what the store did not take is put back and retried after a pause."""
        try:
            if not await self._commit(batch, mode) and not self._is_stopping:
                await asyncio.sleep(self._retry_s)
            elif mode is BatchMode.PROBE and any(self._backlog.is_aside(move.account_id) for move in batch):
                await asyncio.sleep(PROBE_EVERY_S)
        except Exception as error:  # noqa: BLE001 the writer's loop: it continues, and its callers do not wait forever
            self._observer.log.error("internal error", places=places(error))
            for move in batch:
                fail(move, error)
        finally:
            self._backlog.done(batch)

    async def _commit(self, batch: list[Move], mode: BatchMode) -> bool:
        """Write a batch in one transaction. Return False if the store did not take it."""
        process, elapsed_s = self._presence.name, self._presence.host.elapsed_s
        began_s = elapsed_s()
        try:
            moves = self._build(batch)
            self._observer.at("ledger-commit")
            applied = await self._apply(process, [move for move, _, _ in moves.values()], mode)
        except StoreUnavailable as error:
            if isinstance(error, StoreBusy) and mode is not BatchMode.ALONE:
                return await self._commit_by_account(batch, mode)
            self._fail(batch, error)
            return False
        except Exception as error:  # noqa: BLE001 the writer's loop: one bad move must not stop the others
            return await self._commit_apart(batch, process, error, mode)
        if process != self._presence.name:  # swept after this commit: its reserves are gone
            self._requeue(batch)
            return True
        self._observer.at("ledger-committed")
        if applied:  # empty if all accounts are locked
            self.has_failed = False
            metrics = self._observer.metrics
            metrics.ledger_commit_time.add("", elapsed_s() - began_s)
            metrics.ledger_batch.add("", len(batch))
        for account_id, (_, ends, holds) in moves.items():
            if account_id in applied:
                self._answer(applied[account_id], ends, holds)
                self._backlog.rejoin(account_id)
            else:
                self._backlog.set_aside(account_id)
                self._backlog.requeue([move for move in batch if move.account_id == account_id])
        return True

    async def _apply(self, process: str, moves: list[AccountMoves], mode: BatchMode) -> dict[str, Applied]:
        """Wait briefly for accounts that others are writing; then leave out those that are still locked."""
        now_ms = self._presence.host.now_ms()
        if mode is not BatchMode.PROBE:
            lock_s = LOCK_S if mode is BatchMode.SHARED else None
            try:
                return await self._store.transact(
                    lambda tx: transaction.apply_moves(tx, process, moves, now_ms), is_brief=True, lock_s=lock_s
                )
            except StoreBusy:
                if mode is BatchMode.ALONE:
                    raise
        return await self._store.transact(
            lambda tx: transaction.apply_moves(tx, process, moves, now_ms, waits=False), lock_s=LOCK_S
        )

    async def _commit_by_account(self, batch: list[Move], mode: BatchMode) -> bool:
        """Another row of an account is locked, such as a mark. Write the others without it, and set it aside."""
        by_account: dict[str, list[Move]] = {}
        for move in batch:
            by_account.setdefault(move.account_id, []).append(move)
        if len(by_account) == 1:
            self._backlog.set_aside(batch[0].account_id)
            self._backlog.requeue(batch)
            return True
        return await self._commit_each([*by_account.values()], mode)

    async def _commit_each(self, groups: list[list[Move]], mode: BatchMode) -> bool:
        """Write each group in its own transaction, until the store does not take one."""
        for number, group in enumerate(groups, start=1):
            if not await self._commit(group, mode):
                self._requeue([move for unwritten in groups[number:] for move in unwritten])
                return False
        return True

    def _build(self, batch: list[Move]) -> Batch:
        """Group the moves by account. Holds that a reserve covers by now are taken in memory and answered at once."""
        built: Batch = {}
        groups: dict[str, tuple[list[Move], list[Move]]] = {}
        name = self._presence.name
        for move in batch:
            group = groups.get(move.account_id)
            if group is None:
                group = groups[move.account_id] = [], []
            if move.end:
                if move.process != name:
                    move.end = msgspec.structs.replace(move.end, is_uncertain=True, is_late=True)
                group[0].append(move)
            elif move.hold and not move.answer.done():
                if held := self.hold_in_memory(move.hold):
                    move.answer.set_result(held)
                else:
                    group[1].append(move)
        for account_id, (ends, holds) in groups.items():
            ended: list[End] = []  # not list[End](), which takes 4,000 instructions more
            charged_nano = covered_nano = 0
            for move in ends:
                assert move.end
                ended.append(move.end)
                if not move.is_off_reserve:  # the first time that it is written
                    move.is_off_reserve = True
                    charged_nano, covered_nano = charged_nano + move.end.due_nano, covered_nano + move.end.covered_nano
            wanted = [move.hold for move in holds if move.hold] if holds else []
            demand = self._reserves.demand(account_id, charged_nano, covered_nano, wanted)
            caps = self._reserves.caps.use(account_id, ended)
            built[account_id] = AccountMoves(account_id, demand, ended, wanted, caps), ends, holds
        return built

    def _answer(self, applied: Applied, ends: list[Move], holds: list[Move]) -> None:
        taken: list[tuple[Hold, HeldCredit]] = []
        for move, answer in zip(holds, applied.answers, strict=True):
            if move.hold and isinstance(answer, HeldCredit):
                taken.append((move.hold, answer))
        self._reserves.written(applied.account, taken)
        if applied.account.has_caps or applied.account.id in self._reserves.caps:
            self._note_caps(applied, ends, holds)
        self._answer_ends(ends, applied.ended)
        for move, answer in zip(holds, applied.answers, strict=True):
            if not move.answer.done():
                move.answer.set_result(answer)
            elif move.hold and isinstance(answer, HeldCredit):  # its caller was cancelled
                self.abandon(move.hold, answer)

    def _note_caps(self, applied: Applied, ends: list[Move], holds: list[Move]) -> None:
        caps = self._reserves.caps
        caps.written(applied.account.id)
        for move in ends:
            if move.end and move.end.is_capped:
                caps.end(move.account_id, move.end.hold.completion_id)
        for move, answer in zip(holds, applied.answers, strict=True):
            if move.hold and isinstance(answer, HeldCredit) and answer.is_capped:
                caps.hold(move.hold, answer.amount_nano)

    def _answer_ends(self, ends: list[Move], answers: list[Ended]) -> None:
        outcomes: list[tuple[Outcome, int, int | None]] = []
        for move, ended in zip(ends, answers, strict=True):
            assert move.end
            outcome, due_nano = move.end.outcome, move.end.due_nano
            assert ended.charged_nano <= due_nano
            assert ended.is_lost or ended.charged_nano + ended.short_nano == due_nano
            if ended.short_nano or ended.is_lost or ended.corrected_nano:
                self._report(outcome.completion_id, ended)
            if ended.is_lost:
                outcome = msgspec.structs.replace(outcome, status=LOST_STATUS)
            if not move.answer.done():
                move.answer.set_result(ended)
            if move.is_recorded:
                outcomes.append((outcome, ended.charged_nano, move.end.provider_cost_nano))
        if outcomes:
            self._loop.call_soon(self._record, outcomes)  # after the requests were answered

    def _record(self, outcomes: list[tuple[Outcome, int, int | None]]) -> None:
        for outcome, charged_nano, cost_nano in outcomes:
            self._observer.record(outcome, charged_nano, cost_nano)

    def _report(self, completion_id: str, ended: Ended) -> None:
        """Count and log the end of a request that was not charged exactly what was due."""
        metrics, log = self._observer.metrics, self._observer.log
        if ended.short_nano:
            metrics.ledger_short.inc(ended.short_nano)
            log.warning(
                "an account could not pay all that was due", completion_id=completion_id, short_nano=ended.short_nano
            )
        if ended.is_lost:
            metrics.ledger_lost.inc()
            log.warning(
                "a request was not charged in full, because its process was taken for dead",
                completion_id=completion_id,
                charged_nano=ended.charged_nano,
            )
        if ended.corrected_nano:
            log.info(
                "a charge of a sweep was corrected", completion_id=completion_id, corrected_nano=ended.corrected_nano
            )

    def abandon(self, hold: Hold, held: HeldCredit) -> None:
        """End a hold whose request was cancelled before it got the answer. The request records its own outcome."""
        self._reserves.end(hold.account_id, held.amount_nano, 0)
        self._end_unserved(hold, held)

    def _end_unserved(self, hold: Hold, held: HeldCredit | None) -> None:
        """Without `held`, the store may have taken the hold or not."""
        outcome = broken_off(hold, DISCONNECTED_STATUS, self._presence.host.now_ms())
        amount_nano, is_capped = (held.amount_nano, held.is_capped) if held else (0, False)
        end = End(outcome, hold, amount_nano, 0, is_capped=is_capped, is_uncertain=held is None)
        self.end(end, process=self._presence.name, is_recorded=False)

    def _fail(self, batch: list[Move], error: StoreUnavailable) -> None:
        """Keep the ends for the next try, and fail all holds, including those that wait behind this batch.

        A locked account fails only its own holds, and says nothing about the store.
        """
        is_locked = isinstance(error, StoreBusy)
        self.has_failed = self.has_failed or self._is_stopping or not is_locked
        self._observer.metrics.ledger_retries.inc()
        self._observer.log.repeated("the store did not take a batch of the ledger", moves=len(batch), reason=str(error))
        self._requeue([move for move in batch if not fail_hold(move, error)])
        for move in batch:
            if move.hold and move.hold.idempotency_digest:  # the store may have its key
                self._end_unserved(move.hold, None)
            elif move.hold and move.hold.is_capped:  # the store may have it
                self._reserves.caps.doubt(move.account_id, move.hold.key_id)
        if is_locked:
            for account_id in {move.account_id for move in batch}:
                self._backlog.fail_holds(error, account_id)
        else:
            self._backlog.fail_holds(error)

    def _requeue(self, batch: list[Move]) -> None:
        """Queue moves again whose batch may have been written."""
        self._make_uncertain(batch)
        self._backlog.requeue(batch)

    @staticmethod
    def _make_uncertain(batch: list[Move]) -> None:
        for move in batch:
            if move.end:
                move.end = msgspec.structs.replace(move.end, is_uncertain=True)

    async def _commit_apart(self, batch: list[Move], process: str, error: Exception, mode: BatchMode) -> bool:
        """Write each move of a refused batch by itself. If this process was swept, it registers again first.

        An end may be refused because a sweep has written it, so it is given up only once it was tried as uncertain.
        """
        if isinstance(error, StoreRefused):
            try:
                has_rejoined = await self.rejoin_if_swept(process)
            except StoreUnavailable as away:
                self._fail(batch, away)
                return False
            if has_rejoined:
                self._requeue(batch)
                return True
        if len(batch) > 1 or (batch[0].end and not batch[0].end.is_uncertain):
            self._make_uncertain(batch)
            return await self._commit_each([[move] for move in batch], mode)
        self._give_up(batch[0], error)
        return True

    async def rejoin_if_swept(self, process: str) -> bool:
        """If another process swept this one, register under a new name. Return whether that was done."""
        async with self._rejoining:
            if process != self._presence.name:  # another batch has noticed it
                return True
            if await self._store.row(REGISTERED, {"of": process}):
                return False
            self._on_swept()
            await self._presence.rejoin()
            return True

    def _give_up(self, move: Move, error: Exception) -> None:
        if move.end:
            self._reserves.caps.end(move.account_id, move.end.hold.completion_id)
        fail(move, error)
        self._observer.metrics.ledger_refused.inc()
        what = move.hold or (move.end and move.end.outcome)
        self._observer.log.error(
            "the ledger refused a move",
            move="hold" if move.hold else "end" if move.end else "resize",
            completion_id=what.completion_id if what else "",
            places=places(error),
        )
