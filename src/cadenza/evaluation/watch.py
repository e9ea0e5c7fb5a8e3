"""The watch: the cheap cases of a class's suite, asked on a schedule of the version that is served.

A provider that changes a model silently is noticed by it: see drift.py for what counts. One process of the fleet runs a
watch, by a lease in the store that ends with the period. The first finished watch of a version and a suite is the
reference for the later ones. The store gets scores, counts and times, and never content.
Stance on failure: nothing here disturbs the service. What could not be done is logged, and tried in the next period.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from cadenza import clock
from cadenza.core.classes import ClassVersion
from cadenza.core.errors import ControlError
from cadenza.evaluation.drift import MEASURES, WINDOWS, WatchResult, changed_checks, conformance_drift, find_drift
from cadenza.evaluation.runner import AskedSide
from cadenza.evaluation.suite import Suite, SuiteError, load_suite
from cadenza.evaluation.verdict import CaseFacts, ConformanceCheck, summarize_side
from cadenza.observe import Log, Metrics
from cadenza.store.store import Store, StoreUnavailable, Transaction
from cadenza.store.tables import audit_events, verdicts, watches
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.store.tables.verdicts import AnswerScore, EvaluationRecord, VerdictState

POLL_S_MAX = 60.0  # how often a process looks whether a watch is due
POLL_S_MIN = 1.0
LOOKS_PER_PERIOD = 10
RUN_S_MAX = 1800.0
ANSWERED_SHARE_MIN = 0.5  # with fewer answers, the upstream is down, and the watch says nothing about the model
ACTOR = "watch"


class WatchedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class, the version that is served, its suite (None: the starter suite) and the terms of its watch."""

    version: ClassVersion
    suite: Path | None
    every_s: float | None  # None: only by hand
    budget_nano: int
    side: AskedSide  # the main routes of the version

    @property
    def class_id(self) -> str:
        return self.version.class_id

    @property
    def limit_s(self) -> float:
        """How long a watch may take. It ends before the next one is due."""
        return RUN_S_MAX if self.every_s is None else min(RUN_S_MAX, self.every_s)


class WatchAnswers(msgspec.Struct, frozen=True):
    """The graded answers of the main routes, and whether every case was asked within the budget."""

    scores: Sequence[AnswerScore]
    spent_nano: int
    is_complete: bool


class WatchedModel(Protocol):
    """The model behind a version, as a watch asks it."""

    async def answer(self, watched: WatchedClass, suite: Suite, /) -> WatchAnswers:
        """Its answers to a suite."""

    async def check_wire(self, watched: WatchedClass, left_nano: int, /) -> tuple[tuple[ConformanceCheck, ...], int]:
        """The checks of its wire, and what they cost at most; none if that may be more than is left of the budget."""


class WatchDone(msgspec.Struct, frozen=True):
    """A watch that ended, how many cases it has, and what it found; None if it was stopped before the comparison."""

    record: EvaluationRecord
    cases: int
    result: WatchResult | None = None
    reason: str = ""  # why it was stopped


class Watches:
    """The watches that this process runs."""

    def __init__(self, store: Store, model: WatchedModel, log: Log, metrics: Metrics | None = None) -> None:
        self._store = store
        self._model = model
        self._log = log
        self._metrics = metrics
        self._said = dict[str, str]()  # class -> the problem that was logged last

    async def run(self, list_watched: Callable[[], Sequence[WatchedClass]]) -> None:
        """Watch what is due until cancelled. Of what `list_watched` returns, classes with a schedule are watched."""
        while True:
            watched = [one for one in list_watched() if one.every_s is not None]
            shortest_s = min((one.every_s for one in watched if one.every_s), default=POLL_S_MAX * LOOKS_PER_PERIOD)
            await asyncio.sleep(min(POLL_S_MAX, max(POLL_S_MIN, shortest_s / LOOKS_PER_PERIOD)))
            try:
                for one in watched:
                    await self._look(one)
                await self._show(watched)
            except StoreUnavailable as error:
                self._log.warning("the watch of classes was put off", reason=error.problem)

    async def _look(self, watched: WatchedClass) -> None:
        assert watched.every_s is not None
        now_ms = clock.now_ms()
        due_ms = now_ms - round(watched.every_s * 1000)
        last_ms = await watches.watched_at(self._store, watched.class_id)
        if last_ms is not None and last_ms > due_ms:
            return
        try:
            await self.watch(watched, due_ms=due_ms)
        except ControlError as error:
            self._say(watched.class_id, str(error))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 a fault of ours must not end all watches; its text may be content
            self._say(watched.class_id, f"an internal error: {type(error).__name__}")
        else:
            self._said.pop(watched.class_id, None)

    async def watch(
        self, watched: WatchedClass, *, due_ms: int | None = None, actor: str = ACTOR, as_reference: bool = False
    ) -> WatchDone | None:
        """Run one watch. None if another process runs one, or ran one after `due_ms`, or the version was replaced.

        ControlError if the suite cannot be used.
        """
        suite = await _cheap_suite(watched.suite)
        class_id, number, now_ms = watched.class_id, watched.version.number, clock.now_ms()
        reference = await watches.last_reference(self._store, class_id, number, suite.digest)
        is_reference = as_reference or reference is None
        record = EvaluationRecord(
            id="watch_" + secrets.token_urlsafe(12),
            class_id=class_id,
            kind="watch",
            created_at=now_ms,
            actor=actor,
            incumbent=number,
            candidate=watches.REFERENCE if is_reference else "",
            suite=suite.name,
            suite_digest=suite.digest,
            runs=1,
        )
        due_ms, abandoned_ms = now_ms if due_ms is None else due_ms, now_ms - round(watched.limit_s * 1000)
        if not await self._store.transact(lambda tx: watches.claim(tx, record, due_ms, abandoned_ms)):
            return None
        try:
            return await self._run(watched, suite, record, None if is_reference else reference)
        except BaseException:
            await asyncio.shield(self._end(record, "stopped", 0))
            raise

    async def _run(
        self, watched: WatchedClass, suite: Suite, record: EvaluationRecord, reference: EvaluationRecord | None
    ) -> WatchDone:
        before = await watches.list_finished(self._store, watched.class_id, watched.version.number, WINDOWS[-1])
        last = before[0] if before else None
        try:
            async with asyncio.timeout(watched.limit_s):
                answers = await self._model.answer(watched, suite)
                if reason := _why_not_comparable(answers, suite):
                    return await self._stop(record, suite, answers.spent_nano, reason)
                result, checked_nano = await self._compare(watched, suite, answers, reference, before)
        except TimeoutError:
            return await self._stop(record, suite, 0, f"it took longer than {watched.limit_s:.0f} seconds")
        spent_nano = answers.spent_nano + checked_nano
        ended = await self._end(record, "finished", spent_nano, result, answers.scores, _read_result(last))
        facts = {"class_id": record.class_id, "version": record.incumbent, "watch": record.id}
        self._log.info("a watch ended", **facts, score=round(result.summary.score, 4), spent_nano=ended.spent_nano)
        if "score" in result.suspected:
            self._log.warning("a model may drift", **facts, measure="score", detail=result.comparison)
        for one in result.drifts:
            self._log.warning("a model drifts", **facts, measure=one.measure, detail=one.detail)
        return WatchDone(ended, len(suite.cases), result)

    async def _stop(self, record: EvaluationRecord, suite: Suite, spent_nano: int, reason: str) -> WatchDone:
        self._log.warning("a watch was stopped", class_id=record.class_id, reason=reason)
        return WatchDone(await self._end(record, "stopped", spent_nano), len(suite.cases), reason=reason)

    async def _compare(
        self,
        watched: WatchedClass,
        suite: Suite,
        answers: WatchAnswers,
        reference: EvaluationRecord | None,
        before: Sequence[EvaluationRecord],
    ) -> tuple[WatchResult, int]:
        """The result of a watch, and what its checks of the wire cost. Without a reference, it is one itself.

        Of the watches `before` it, newest first, those with the same reference are compared together with it.
        """
        facts = [CaseFacts(one, ()) for one in range(1, len(suite.cases) + 1)]
        left_nano = watched.budget_nano - answers.spent_nano
        checks, cost_nano = await self._model.check_wire(watched, left_nano)
        summary = summarize_side(facts, answers.scores, checks)
        if reference is None or (then := _read_result(reference)) is None:
            return WatchResult(summary=summary), cost_nano
        old = await verdicts.list_scores(self._store, reference.id)
        pooled = [one for one in before if (found := _read_result(one)) and found.reference_id == reference.id]
        earlier = [await verdicts.list_scores(self._store, one.id) for one in pooled]
        last = _read_result(pooled[0]) if pooled else None
        drifts, suspected, comparison = find_drift(old, [answers.scores, *earlier], last.suspected if last else ())
        if changed_checks(then.summary.conformance, checks):
            again, more_nano = await self._model.check_wire(watched, left_nano - cost_nano)
            cost_nano += more_nano
            if changed := conformance_drift(changed_checks(then.summary.conformance, checks, again)):
                drifts.append(changed)
        result = WatchResult(
            summary=summary,
            reference_id=reference.id,
            drifts=tuple(drifts),
            suspected=tuple(suspected),
            comparison=comparison,
        )
        return result, cost_nano

    async def _end(
        self,
        record: EvaluationRecord,
        state: VerdictState,
        spent_nano: int,
        result: WatchResult | None = None,
        scores: Sequence[AnswerScore] = (),
        before: WatchResult | None = None,
    ) -> EvaluationRecord:
        """Write how a watch ended, and an audit event for each measure that had not drifted in the watch before."""
        text = msgspec.json.encode(result).decode() if result else None
        ended = msgspec.structs.replace(
            record, state=state, ended_at=clock.now_ms(), spent_nano=spent_nano, result=text
        )
        known = {one.measure for one in before.drifts} if before else set()
        new = [one for one in result.drifts if one.measure not in known] if result else []

        def write(tx: Transaction) -> None:
            verdicts.add_scores(tx, record.id, list(scores))
            verdicts.end(tx, ended)
            for one in new:
                detail = f"{one.measure}: {one.detail}"
                event = AuditEvent(clock.now_ms(), record.actor, "class.drift", subject=record.class_id, detail=detail)
                audit_events.add(tx, event)

        await self._store.transact(write)
        return ended

    async def _show(self, watched: Sequence[WatchedClass]) -> None:
        """Set the metrics to what the last watch of each class found, whichever process ran it."""
        if self._metrics is None:
            return
        results = {
            one.class_id: _read_result(found[0]) if found else None
            for one in watched
            for found in [await watches.list_finished(self._store, one.class_id, one.version.number, 1)]
        }
        self._metrics.watch_score.clear()
        self._metrics.watch_drift.clear()
        for class_id, result in results.items():
            if result:
                self._metrics.watch_score.labels(class_id).set(result.summary.score)
                drifted = {one.measure for one in result.drifts}
                for measure in MEASURES:
                    self._metrics.watch_drift.labels(class_id, measure).set(measure in drifted)

    def _say(self, class_id: str, problem: str) -> None:
        if self._said.get(class_id) != problem:
            self._said[class_id] = problem
            self._log.warning("a class cannot be watched", class_id=class_id, reason=problem)


async def _cheap_suite(path: Path | None) -> Suite:
    """The cheap cases of a suite, with its digest."""
    try:
        suite = await asyncio.to_thread(load_suite, path)
    except SuiteError as error:
        count = len(error.mistakes)
        raise ControlError(f"The suite {path} has mistakes: {count}. Run 'cadenza class suite check {path}'.") from None
    cheap = tuple(case for case in suite.cases if case.is_cheap)
    if not cheap:
        raise ControlError(f'The suite {suite.name} has no cheap cases. Give some of them "is_cheap": true.')
    return Suite(suite.name, cheap, suite.digest)


def _why_not_comparable(answers: WatchAnswers, suite: Suite) -> str:
    if not answers.is_complete:
        return "its budget was spent before every case was asked"
    answered = sum(not one.fault for one in answers.scores)
    if answered < ANSWERED_SHARE_MIN * len(suite.cases):
        return f"only {answered} of {len(suite.cases)} cases were answered: the upstream fails"
    return ""


def _read_result(record: EvaluationRecord | None) -> WatchResult | None:
    """The result of a watch; None if it has none."""
    if record is None or record.result is None:
        return None
    return msgspec.json.decode(record.result, type=WatchResult)
