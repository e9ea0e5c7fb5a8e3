"""The gate of a promotion: the newest verdict on exactly this candidate, incumbent and suite must pass; and what to
do next about a class.
"""

import msgspec

from cadenza.control.class_changes import ClassRules, Gate, Judge, Judgement
from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.spans import DAY_MS
from cadenza.parts.evaluation import verdict_rows as verdicts
from cadenza.parts.evaluation.gate import find_shortfalls
from cadenza.parts.evaluation.suite import STARTER, load_suite
from cadenza.parts.evaluation.verdict_rows import EvaluationRecord
from cadenza.store.store import Store
from cadenza.terminal.console import to_row

VERDICT_DAYS_MAX = 14  # how old the verdict of a promotion may be
VERDICTS_READ = 200  # one of them must be on the candidate
SHOWN = ("id", "state", "created_at", "ended_at", "actor", "incumbent", "candidate", "suite", "runs")


async def open_gate(store: Store, state: ClassState, made: ClassVersion, rules: ClassRules, now_ms: int) -> str:
    """The id of the verdict. ControlError with what is missing if there is none that passes."""
    class_id, place, suite = state.version.class_id, made.routes[0].name, load_suite(rules.suite)
    given = f" --suite {rules.suite}" if rules.suite else ""

    def refused(sentence: str) -> ControlError:
        return ControlError(f"{sentence} Run 'cadenza class evaluate {class_id} --candidate {place}{given}'.")

    all_found = await verdicts.list_newest(store, class_id, count=VERDICTS_READ)
    found = [one for one in all_found if one.candidate == place]
    if not found:
        others = sorted({one.candidate for one in all_found})
        known = f" There are verdicts for {', '.join(others)}." if others else ""
        raise refused(f"There is no verdict on {place} for '{class_id}'.{known}")
    against = [one for one in found if one.incumbent == state.version.number]
    if not against:
        raise refused(
            f"The newest verdict on {place} is against version {found[0].incumbent} of '{class_id}', and version "
            f"{state.version.number} is served."
        )
    with_suite = [one for one in against if one.suite_digest == suite.digest]
    if not with_suite:
        raise refused(
            f"The newest verdict on {place} is by the suite '{against[0].suite}' or by another state of it, and the "
            f"gate wants '{suite.name}' as it is now."
        )
    same = [one for one in with_suite if one.candidate_digest == made.digest]
    if not same:
        raise refused(f"The settings of the route {place} have changed since its newest verdict.")
    newest = next((one for one in same if one.result), None)
    if newest is None or newest.result is None:
        raise refused(f"The evaluation {same[0].id} of {place} has not ended.")
    age_days = (now_ms - (newest.ended_at or newest.created_at)) / DAY_MS
    if age_days > VERDICT_DAYS_MAX:
        over = age_days - VERDICT_DAYS_MAX
        raise refused(
            f"The verdict {newest.id} on {place} is {age_days:.1f} days old, {over:.1f} more than the gate allows."
        )
    if shortfalls := find_shortfalls(newest.result, rules.gate):
        head = f"The verdict {newest.id} on {place} does not pass the gate of '{class_id}':"
        raise ControlError("\n  ".join([head, *shortfalls]))
    return newest.id


async def judge_class(store: Store, state: ClassState, rules: ClassRules) -> Judgement:
    found = await verdicts.list_newest(store, state.version.class_id, count=1)
    if not found:
        return Judgement(_first_step(state))
    [newest] = found
    is_current = newest.incumbent == state.version.number
    record = {**to_row(newest, *SHOWN), "result": msgspec.to_builtins(newest.result)}
    return Judgement(_step_after(newest, rules) if is_current else _first_step(state), _describe(newest), record)


gate: Gate = open_gate
judge: Judge = judge_class


def _describe(record: EvaluationRecord) -> str:
    head = f"{record.candidate} against version {record.incumbent}, {rfc3339(record.created_at)}, {record.id}"
    if not (found := record.result):
        return f"{head}: {record.state}"
    why = f". {found.why_undecided}" if found.why_undecided else ""
    return (
        f"{head}: {found.decision}, score {found.incumbent.score:.3f} -> {found.candidate.score:.3f} "
        f"({found.interval}), "
        f"{found.wins} wins, {found.losses} losses, {found.ties} ties{why}"
    )


def _first_step(state: ClassState) -> str:
    command = f"cadenza class evaluate {state.version.class_id} --candidate PROVIDER/MODEL"
    return f"To try another model, run '{command}'."


def _step_after(verdict: EvaluationRecord, rules: ClassRules) -> str:
    """What to do after the newest evaluation, which was against the version that is served."""
    class_id = verdict.class_id
    if verdict.result is None:
        return f"The evaluation {verdict.id} of {verdict.candidate} has not ended: repeat its command to resume it."
    wanted = rules.suite.name if rules.suite else STARTER
    if verdict.suite != wanted:
        return (
            f"The newest verdict, on {verdict.candidate}, is by the suite '{verdict.suite}', and the gate wants "
            f"'{wanted}': run 'cadenza class evaluate {class_id} --candidate {verdict.candidate}'."
        )
    if shortfalls := find_shortfalls(verdict.result, rules.gate):
        return f"{verdict.candidate} does not pass the gate: {shortfalls[0]}"
    return (
        f"{verdict.candidate} keeps the limits of the gate, by the suite '{verdict.suite}'. To serve it, run 'cadenza "
        f"class promote {class_id} --candidate {verdict.candidate}', which also checks that this is the suite of the "
        "gate, and the age of the verdict."
    )
