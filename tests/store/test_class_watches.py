"""Watches of classes on a real store: who runs one, what it is compared with, and what a drift leaves behind."""

import asyncio
import io
import json
import time
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from cadenza.core.classes import ClassVersion
from cadenza.core.errors import ControlError
from cadenza.core.money import Price
from cadenza.core.records import Route
from cadenza.evaluation.runner import AskedSide
from cadenza.evaluation.suite import Suite
from cadenza.evaluation.verdict import ConformanceCheck
from cadenza.evaluation.watch import WatchAnswers, WatchDone, WatchedClass, Watches
from cadenza.observe import Metrics, make_log
from cadenza.store import class_tables
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, class_versions, verdicts, watches
from cadenza.store.tables.verdicts import AnswerScore, EvaluationRecord

CASES = 24
ANSWERS_NANO, CHECK_NANO = 1_000, 300
SECRET = "quartz-marmalade"


class ScriptedModel:
    """Answers a suite with these scores, tokens and times, and its wire with these states."""

    def __init__(self) -> None:
        self.score, self.tokens, self.first_ms, self.stops, self.fault = 1.0, 50, 300.0, "ok", ""
        self.asked, self.left_nano, self.lost = 0, list[int](), 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.begun = asyncio.Event()

    async def answer(self, _watched: WatchedClass, suite: Suite) -> WatchAnswers:
        self.asked += 1
        self.begun.set()
        await self.hold.wait()
        scores = [
            AnswerScore(
                case_number=number,
                run=1,
                side="incumbent",
                score=0.0 if self.fault or number <= self.lost else self.score,
                completion_tokens=self.tokens,
                first_token_ms=self.first_ms,
                fault=self.fault,
            )
            for number in range(1, len(suite.cases) + 1)
        ]
        return WatchAnswers(scores, ANSWERS_NANO, is_complete=True)

    async def check_wire(self, _watched: WatchedClass, left_nano: int) -> tuple[tuple[ConformanceCheck, ...], int]:
        self.left_nano.append(left_nano)
        return (msgspec.convert({"name": "stop", "state": self.stops}, ConformanceCheck),), CHECK_NANO


@pytest.fixture
async def watched(store: Store, tmp_path: Path) -> WatchedClass:
    """Version 1 of forte, and a suite of which some cases are cheap."""
    cases = [
        {
            "id": f"c{number}",
            "tags": ["general"],
            "messages": [{"role": "user", "content": f"{SECRET} {number}"}],
            "graders": [{"kind": "contains", "texts": [SECRET]}],
            "is_cheap": number < CASES,
        }
        for number in range(2 * CASES)
    ]
    suite = tmp_path / "suite.jsonl"
    suite.write_text("\n".join(map(json.dumps, cases)))

    def seed(tx: Transaction) -> ClassVersion:
        route = Route("acme", "large", 8_000, 1_000)
        version = class_versions.add(tx, ClassVersion(class_id="forte", routes=(route,), character="Be kind."))
        class_versions.add_state(tx, version, 1)
        return version

    version = await store.transact(seed)
    side = AskedSide(version.main_routes, None, Price(1, 1))
    return WatchedClass(version=version, suite=suite, every_s=3600, budget_nano=10**9, side=side)


async def watch(store: Store, model: ScriptedModel, watched: WatchedClass) -> WatchDone:
    done = await Watches(store, model, make_log(io.StringIO())).watch(watched)
    assert done
    return done


async def states(store: Store) -> list[str]:
    """The states of all watches, newest first."""
    newest_first = select(class_tables.verdicts.c.state).order_by(class_tables.verdicts.c.created_at.desc())
    return [state for (state,) in await store.rows(Statement(newest_first), {})]


async def drifts(store: Store) -> list[str]:
    """The history of the class, oldest first."""
    found = await audit_events.list_of_subject(store, "forte", 100)
    return [event.detail for event in reversed(found) if event.event == "class.drift"]


async def test_silent_change(store: Store, watched: WatchedClass) -> None:
    """The first watch is the reference; a worse score is drift, in the history once, until it is as before."""
    model = ScriptedModel()
    first = await watch(store, model, watched)
    assert first.result
    assert (first.result.reference_id, first.record.candidate) == (None, watches.REFERENCE)
    again = await watch(store, model, watched)
    assert again.result
    assert (again.result.reference_id, again.result.drifts) == (first.record.id, ())
    model.score = 0.0
    for _ in range(2):
        worse = await watch(store, model, watched)
        assert worse.result
        assert [one.measure for one in worse.result.drifts] == ["score"]
    assert await drifts(store) == [
        "score: 1.000 -> 0.000; of 24 cases 24 are worse and 0 better, by chance with a probability of 2e-07"
    ]
    model.score = 1.0
    better = await watch(store, model, watched)
    assert better.result
    assert better.result.drifts == ()


async def test_a_drop_that_stays_is_suspected_and_then_drift(store: Store, watched: WatchedClass) -> None:
    """Nine of 24 cases that stay lost are too few for one watch and enough for two; the numbers are always shown."""
    model = ScriptedModel()
    await watch(store, model, watched)
    model.lost = 9
    first, second = await watch(store, model, watched), await watch(store, model, watched)
    assert first.result
    assert second.result
    assert (first.result.finding, first.result.drifts, first.result.suspected) == ("suspect", (), ("score",))
    assert first.result.comparison.startswith("1.000 -> 0.625; of 24 cases 9 are worse and 0 better")
    assert (second.result.finding, [one.measure for one in second.result.drifts]) == ("drift", ["score"])
    [event] = await drifts(store)
    assert event == (
        "score: 1.000 -> 0.625; of 24 cases 9 are worse and 0 better, "
        "by chance with a probability of 0.0002 over the last 2 watches"
    )
    model.lost = 0
    third = await watch(store, model, watched)
    assert third.result
    assert third.result.finding == "steady", "the watches of the drop do not outlast it"


async def test_a_new_reference_begins_a_new_pool(store: Store, watched: WatchedClass) -> None:
    """Watches from before an accepted change, and of another suite, are not pooled with those after it."""
    model = ScriptedModel()
    await watch(store, model, watched)
    model.lost = 10
    for _ in range(3):
        await watch(store, model, watched)
    model.lost = 0
    await Watches(store, model, make_log(io.StringIO())).watch(watched, as_reference=True)
    model.lost = 10
    after = await watch(store, model, watched)
    assert after.result
    assert after.result.finding == "suspect"


async def test_other_measures(store: Store, watched: WatchedClass) -> None:
    """Longer answers and another behaviour of the wire are drift at once, later first tokens in the second watch."""
    model = ScriptedModel()
    await watch(store, model, watched)
    model.tokens, model.first_ms, model.stops = 150, 900.0, "fault"
    first, second = await watch(store, model, watched), await watch(store, model, watched)
    assert first.result
    assert second.result
    assert [one.measure for one in first.result.drifts] == ["tokens", "conformance"]
    assert [one.measure for one in second.result.drifts] == ["tokens", "latency", "conformance"]
    assert await drifts(store) == [
        "tokens: median of 50 -> 150 tokens",
        "conformance: stop: ok -> fault",
        "latency: median of 300 -> 900 ms to the first token",
    ]


async def test_checks_of_the_wire_keep_to_the_budget(store: Store, watched: WatchedClass) -> None:
    """The checks get what the answers have left, their repetition what the checks have left; all is on the record."""
    model = ScriptedModel()
    await watch(store, model, watched)
    model.stops, model.left_nano = "fault", []
    drifted = await watch(store, model, watched)
    left_nano = watched.budget_nano - ANSWERS_NANO
    assert model.left_nano == [left_nano, left_nano - CHECK_NANO]
    assert drifted.record.spent_nano == ANSWERS_NANO + 2 * CHECK_NANO


async def test_old_watches_are_deleted(store: Store, watched: WatchedClass) -> None:
    """The newest watches of a class stay, and its references, however old they are."""
    model = ScriptedModel()
    reference = await watch(store, model, watched)
    old = [
        msgspec.structs.replace(reference.record, id=f"watch_{number:03}", candidate="", created_at=number)
        for number in range(1, watches.KEPT + 3)
    ]
    score = AnswerScore(case_number=1, run=1, side="incumbent", score=1.0)

    def add(tx: Transaction) -> None:
        for one in old:
            verdicts.add(tx, one)
            verdicts.add_scores(tx, one.id, [score])

    await store.transact(add)
    await watch(store, model, watched)
    left = {row[0] for row in await store.rows(Statement(select(class_tables.verdicts.c.id)), {})}
    assert len(left) == watches.KEPT + 1
    assert reference.record.id in left
    assert {one.id for one in old} - left == {"watch_001", "watch_002", "watch_003"}
    assert await verdicts.list_scores(store, "watch_003") == []
    assert await verdicts.list_scores(store, "watch_004") == [score]


async def test_upstream_that_is_down(store: Store, watched: WatchedClass) -> None:
    """A watch without answers is stopped: it is neither a reference nor drift."""
    model = ScriptedModel()
    model.fault = "unreachable"
    down = await watch(store, model, watched)
    assert (down.record.state, down.result) == ("stopped", None)
    assert down.reason == "only 0 of 24 cases were answered: the upstream fails"
    model.fault = ""
    assert (await watch(store, model, watched)).record.candidate == watches.REFERENCE
    assert await drifts(store) == []


async def test_one_of_many_runs_it(store: Store, watched: WatchedClass) -> None:
    """Of several processes that find a watch due, one runs it; while it runs, none can be run by hand either."""
    model = ScriptedModel()
    model.hold.clear()
    processes = [Watches(store, model, make_log(io.StringIO())) for _ in range(4)]
    before_ms = time.time_ns() // 1_000_000 - 1
    running = [asyncio.create_task(one.watch(watched, due_ms=before_ms)) for one in processes]
    await model.begun.wait()
    assert await processes[0].watch(watched) is None
    model.hold.set()
    done = await asyncio.gather(*running)
    assert (model.asked, sum(one is not None for one in done)) == (1, 1)
    assert await processes[0].watch(watched, due_ms=1) is None, "it is not due again"


async def test_cancelled_watch(store: Store, watched: WatchedClass) -> None:
    """A watch that is cancelled, as when the service drains, is stopped in the store, and another can begin."""
    model = ScriptedModel()
    model.hold.clear()
    task = asyncio.create_task(watch(store, model, watched))
    await model.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await states(store) == ["stopped"]
    model.hold.set()
    assert (await watch(store, model, watched)).record.state == "finished"


async def test_killed_watch(store: Store, watched: WatchedClass) -> None:
    """A watch whose process was killed is ended by the next one, once it is older than any that still runs."""
    killed = EvaluationRecord(
        id="watch_killed",
        class_id="forte",
        kind="watch",
        created_at=1_000,
        actor="watch",
        incumbent=watched.version.number,
        suite="suite.jsonl",
        suite_digest=bytes(32),
        runs=1,
    )
    assert await store.transact(lambda tx: watches.claim(tx, killed, 1_000, 0))
    assert await watches.watched_at(store, "forte") == 1_000
    assert (await watch(store, ScriptedModel(), watched)).record.state == "finished"
    assert await states(store) == ["finished", "stopped"]


async def test_replaced_version(store: Store, watched: WatchedClass) -> None:
    """A process that has not seen a promotion yet does not watch the version from before it."""
    other = msgspec.structs.replace(watched, version=msgspec.structs.replace(watched.version, number=2))
    model = ScriptedModel()
    assert await Watches(store, model, make_log(io.StringIO())).watch(other) is None
    assert model.asked == 0


async def shown(metrics: Metrics, line: bytes) -> None:
    while line not in metrics.render():  # noqa: ASYNC110 the metrics have no event
        await asyncio.sleep(0.02)


async def test_schedule(store: Store, watched: WatchedClass) -> None:
    """The task of a process watches what is due, shows it in the metrics, and logs numbers only."""
    model, log, metrics = ScriptedModel(), io.StringIO(), Metrics()
    due = msgspec.structs.replace(watched, every_s=0.5)
    task = asyncio.create_task(Watches(store, model, make_log(log), metrics).run(lambda: [due]))
    try:
        async with asyncio.timeout(60):
            await shown(metrics, b'cadenza_watch_drift{class_id="forte",measure="score"} 0.0')
            model.score = 0.0
            await shown(metrics, b'cadenza_watch_drift{class_id="forte",measure="score"} 1.0')
    finally:
        task.cancel()
    assert b'cadenza_watch_score{class_id="forte"} 0.0' in metrics.render()
    assert '"a model drifts"' in log.getvalue()
    assert SECRET not in log.getvalue()
    assert SECRET.encode() not in metrics.render()


async def test_a_fault_of_ours_does_not_end_the_schedule(store: Store, watched: WatchedClass) -> None:
    """The log has the kind of error and no content, and the next watch begins."""

    class FaultyModel(ScriptedModel):
        async def answer(self, watched: WatchedClass, suite: Suite) -> WatchAnswers:
            if not self.begun.is_set():
                self.begun.set()
                raise OverflowError(SECRET)
            return await super().answer(watched, suite)

    log, metrics = io.StringIO(), Metrics()
    due = msgspec.structs.replace(watched, every_s=0.5)
    task = asyncio.create_task(Watches(store, FaultyModel(), make_log(log), metrics).run(lambda: [due]))
    try:
        async with asyncio.timeout(60):
            await shown(metrics, b'cadenza_watch_score{class_id="forte"} 1.0')
    finally:
        task.cancel()
    assert "an internal error: OverflowError" in log.getvalue()
    assert SECRET not in log.getvalue()


async def test_suite_that_cannot_be_used(store: Store, watched: WatchedClass, tmp_path: Path) -> None:
    """A suite with mistakes, or without cheap cases, is an error that says what to do and quotes nothing of it."""
    broken, dear = tmp_path / "broken.jsonl", tmp_path / "dear.jsonl"
    broken.write_text(f'{{"{SECRET}": 1}}')
    assert watched.suite
    dear.write_text(watched.suite.read_text().replace('"is_cheap": true', '"is_cheap": false'))
    watching = Watches(store, ScriptedModel(), make_log(io.StringIO()))
    with pytest.raises(ControlError, match=r"has mistakes: 1. Run 'cadenza class suite check") as error:
        await watching.watch(msgspec.structs.replace(watched, suite=broken))
    assert SECRET not in str(error.value)
    with pytest.raises(ControlError, match=r"dear.jsonl has no cheap cases"):
        await watching.watch(msgspec.structs.replace(watched, suite=dear))
