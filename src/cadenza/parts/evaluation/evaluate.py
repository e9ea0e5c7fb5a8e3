"""One evaluation, from its row in the store to the verdict: resumed where an earlier command was interrupted.

The row and the scores of each case are written as soon as they are known, so Ctrl-C and kill -9 lose only the cases in
flight. Both sides must answer a plain request before any case is asked: a wrong key would otherwise cost a whole run of
faults.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from cadenza import clock
from cadenza.core.classes import ClassVersion
from cadenza.core.codes import random_id
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Route
from cadenza.core.tokens import Tokenizer
from cadenza.parts.evaluation import verdict_rows as verdicts
from cadenza.parts.evaluation.conformance import check_conformance, conformance_quote
from cadenza.parts.evaluation.graders import Graders
from cadenza.parts.evaluation.runner import RunProgress, SuiteRun, run_suite
from cadenza.parts.evaluation.verdict import SIDES, AnswerScore, Side, Verdict, WireChecks, reach_verdict
from cadenza.parts.evaluation.verdict_rows import EvaluationRecord
from cadenza.store.store import Store, StoreRefused


class EvaluationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare, and how. `restart`: do not go on with an interrupted evaluation."""

    incumbent: ClassVersion
    candidate: Route
    run: SuiteRun
    restart: bool = False


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """How an evaluation ended."""

    record: EvaluationRecord
    verdict: Verdict  # the result in it
    is_out_of_budget: bool
    advice: tuple[str, ...]  # of the checks of the candidate's wire


class EvaluationEvents(msgspec.Struct, frozen=True):
    """What a command shows while an evaluation runs."""

    began: Callable[[EvaluationRecord, int], None]  # the row, and how many pairs were asked before
    progressed: Callable[[RunProgress], None]


async def evaluate(store: Store, order: EvaluationOrder, graders: Graders, events: EvaluationEvents) -> Evaluated:
    """Ask, grade and compare. ControlError if a side does not answer, or if the budget is too small to begin."""
    run = order.run
    record, recorded = await _begin(store, order)
    events.began(record, len(recorded) // len(SIDES))
    wires, checked_nano = await _check_sides(order)
    scores = list(recorded)

    async def keep(new: list[AnswerScore], progress: RunProgress) -> None:
        await _write_scores(store, record.id, new, progress.spent_nano)
        scores.extend(new)
        events.progressed(progress)

    other_nano = max(record.spent_nano - sum(run.counted_cost(one) for one in recorded), 0)
    progress = await run_suite(run, graders, keep, recorded, other_nano + checked_nano)
    verdict = reach_verdict(
        run.facts,
        scores,
        run.runs,
        wires=wires,
        spent_nano=progress.spent_nano,
    )
    ended = msgspec.structs.replace(
        record,
        state="finished" if verdict.is_complete else "stopped",
        ended_at=clock.now_ms(),
        spent_nano=verdict.spent_nano,
        result=verdict,
    )
    await store.transact(lambda tx: verdicts.end(tx, ended))
    return Evaluated(record=ended, verdict=verdict, is_out_of_budget=progress.is_out_of_budget, advice=wires[1].advice)


async def _begin(store: Store, order: EvaluationOrder) -> tuple[EvaluationRecord, list[AnswerScore]]:
    """The evaluation that was interrupted, with its scores, or a new one."""
    incumbent, candidate, suite = order.incumbent, order.candidate, order.run.suite
    new = EvaluationRecord(
        id=f"eval_{random_id()}",
        class_id=incumbent.class_id,
        created_at=clock.now_ms(),
        actor=COMMAND_LINE.name,
        incumbent=incumbent.number,
        candidate=candidate.name,
        candidate_digest=incumbent.with_candidate(candidate).digest,
        suite=suite.name,
        suite_digest=suite.digest,
        runs=order.run.runs,
    )
    same = await verdicts.list_same(store, new)
    if same and same[0].state != "finished" and same[0].runs == new.runs and not order.restart:
        return same[0], await verdicts.list_scores(store, same[0].id)
    await store.transact(lambda tx: verdicts.add(tx, new))
    return new, []


async def _write_scores(store: Store, id_: str, scores: list[AnswerScore], spent_nano: int) -> None:
    try:
        await store.transact(lambda tx: verdicts.add_scores(tx, id_, scores, spent_nano))
    except StoreRefused:
        raise ControlError(
            "Another command runs this evaluation: wait for it, or begin a new one: --restart."
        ) from None


async def _check_sides(order: EvaluationOrder) -> tuple[tuple[WireChecks, WireChecks], int]:
    """The checks of both sides, of one route only once, and what they cost. ControlError if a side does not answer."""
    run, tokenizer = order.run, Tokenizer()
    if sum(conformance_quote(run.sides[side].counted) for side in SIDES) > run.budget_nano:
        raise ControlError("The budget does not even pay for the checks of wire conformance: raise --budget.")
    first = {side: run.sides[side].routes[0] for side in SIDES}

    def check(side: Side) -> Awaitable[WireChecks]:
        route = first[side]
        return check_conformance(run.upstreams[route.provider], route, run.sides[side].dialect, tokenizer)

    if first["incumbent"] == first["candidate"]:
        both = await check("candidate")
        found = (WireChecks(both.checks), both)
    else:
        found = await asyncio.gather(check("incumbent"), check("candidate"))
    for side, wire in zip(SIDES, found, strict=True):
        if any(one.name == "answers" and one.state == "fault" for one in wire.checks):
            raise ControlError(
                f"The {side}, {first[side].name}, does not answer a plain request, so no case was asked. "
                f"{'; '.join(wire.advice)}"
            )
    costs = [conformance_quote(run.sides[side].counted, one.requests) for side, one in zip(SIDES, found, strict=True)]
    return found, sum(costs)
