"""Evaluations of classes: who compared what, and a row for each answer. Counts and scores, never content.

A row of `verdict_scores` is written when its answer was graded, so an evaluation that was killed can go on. `result`
is written once, when the evaluation has ended.
"""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, insert, select

from cadenza.core.public import Public
from cadenza.parts.evaluation.verdict import AnswerScore, Verdict
from cadenza.store.class_tables import verdict_scores, verdicts
from cadenza.store.rows import Rows
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction, change_row

VerdictState = Literal["running", "finished", "stopped"]


class EvaluationRecord(Public, msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation: a row of `verdicts`. Release 0.1.0 has left others there, of the kind `watch`."""

    id: str
    class_id: str
    kind: Literal["evaluation"] = "evaluation"
    state: VerdictState = "running"  # stopped: at its budget, or by its operator
    created_at: int
    ended_at: int | None = None
    actor: str
    incumbent: int  # the version of the class
    candidate: str = ""  # provider/model
    candidate_digest: bytes | None = None  # of the version that it would become
    suite: str  # its name
    suite_digest: bytes
    runs: int
    spent_nano: int = 0
    result: Verdict | None = None  # once it has ended; JSON in the row


def _read_result(found: str | None) -> Verdict | None:
    return None if found is None else msgspec.json.decode(found, type=Verdict)


RECORDS, SCORE_ROWS = Rows(EvaluationRecord, verdicts, {"result": _read_result}), Rows(AnswerScore, verdict_scores)
ADD = Statement(insert(verdicts), *EvaluationRecord.__struct_fields__)
_EVALUATIONS = (
    select(*RECORDS.columns)
    .where(verdicts.c.class_id == bindparam("of"), verdicts.c.kind == "evaluation")
    .order_by(verdicts.c.created_at.desc(), verdicts.c.id.desc())
)
LIST = Statement(_EVALUATIONS.limit(bindparam("count")))
SAME = Statement(
    _EVALUATIONS.where(
        verdicts.c.incumbent == bindparam("of_incumbent"),
        verdicts.c.candidate_digest == bindparam("of_candidate"),
        verdicts.c.suite_digest == bindparam("of_suite"),
    )
)
ADD_SCORE = Statement(insert(verdict_scores), "verdict_id", *AnswerScore.__struct_fields__)
SCORES = Statement(
    select(*SCORE_ROWS.columns)
    .where(verdict_scores.c.verdict_id == bindparam("of"))
    .order_by(verdict_scores.c.case_number, verdict_scores.c.run, verdict_scores.c.side.desc())
)


def add(tx: Transaction, record: EvaluationRecord) -> None:
    tx.change(ADD, {**msgspec.structs.asdict(record), "result": _to_json(record.result)})


async def list_newest(store: Store, class_id: str, count: int) -> list[EvaluationRecord]:
    """The newest evaluations of candidates, newest first."""
    return [RECORDS.read(row) for row in await store.rows(LIST, {"of": class_id, "count": count})]


async def list_same(store: Store, like: EvaluationRecord) -> list[EvaluationRecord]:
    """Evaluations of the same candidate against the same incumbent with the same suite, newest first."""
    values = {"of": like.class_id, "of_incumbent": like.incumbent}
    values |= {"of_candidate": like.candidate_digest, "of_suite": like.suite_digest}
    return [RECORDS.read(row) for row in await store.rows(SAME, values)]


def end(tx: Transaction, record: EvaluationRecord) -> None:
    """Write how an evaluation ended: `state`, `ended_at`, `spent_nano` and `result`."""
    ended = {name: getattr(record, name) for name in ("state", "ended_at", "spent_nano")}
    change_row(tx, verdicts, record.id, **ended, result=_to_json(record.result))


def add_scores(tx: Transaction, id_: str, scores: list[AnswerScore], spent_nano: int) -> None:
    """Add scores, and what the whole evaluation has spent by now."""
    change_row(tx, verdicts, id_, spent_nano=spent_nano)
    tx.change_each(ADD_SCORE, [{"verdict_id": id_, **msgspec.structs.asdict(score)} for score in scores])


async def list_scores(store: Store, id_: str) -> list[AnswerScore]:
    return [SCORE_ROWS.read(row) for row in await store.rows(SCORES, {"of": id_})]


def _to_json(result: Verdict | None) -> str | None:
    return None if result is None else msgspec.json.encode(result).decode()
