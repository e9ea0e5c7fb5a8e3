"""The report of an evaluation: one page with charts and the answers side by side, for the operator's own disk.

It is the only place where content of an evaluation is written. Messages and answers are hostile: the template escapes
everything, the page loads nothing, and its policy lets only its own script run.
"""

import secrets
from typing import Any

import jinja2
import msgspec

from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.evaluation.evaluate import Evaluated, EvaluationOrder
from cadenza.evaluation.runner import GradedAnswer
from cadenza.evaluation.verdict import CaseResult, compare_cases, pair_scores
from cadenza.evaluation.wording import describe_decision
from cadenza.store.tables.verdicts import SIDES, Side

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("cadenza.evaluation", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
)
CONTENT_CHARS_MAX = 20_000  # of one message or answer on the page
ROW_HEIGHT = 30  # of a tag in the chart


class ReportMessage(msgspec.Struct, frozen=True):
    """One message of a case."""

    role: str
    text: str


class ReportAnswer(msgspec.Struct, frozen=True):
    """One answer of a side, or what is known of it if its text was not kept."""

    run: int
    score: float
    fault: str
    duration_ms: float | None
    text: str | None  # None: not kept
    calls: tuple[str, ...] = ()
    refusal: str = ""
    finish_reason: str = ""
    reason: str = ""  # why it has its score


class ReportCase(msgspec.Struct, frozen=True):
    """One case and the answers of both sides."""

    number: int
    id: str
    tags: tuple[str, ...]
    outcome: str
    incumbent_score: float
    candidate_score: float
    messages: tuple[ReportMessage, ...]
    answers: dict[Side, tuple[ReportAnswer, ...]]


class ReportMeasure(msgspec.Struct, frozen=True):
    """A pair of bars: shares of the larger value, and the values as text."""

    name: str
    shares: tuple[float, float]
    values: tuple[str, str]


def render_report(order: EvaluationOrder, found: Evaluated) -> str:
    verdict = found.verdict
    cases = _cases(order, found)
    return ENVIRONMENT.get_template("report.html").render(
        nonce=secrets.token_urlsafe(16),
        sentence=describe_decision(verdict, order.candidate.name),
        verdict=verdict,
        record=found.record,
        created=rfc3339(found.record.created_at),
        incumbents=[route.name for route in order.incumbent.main_routes],
        candidate=order.candidate.name,
        measures=_measures(found),
        checks=_checks(found),
        cases=cases,
        tags=[one.tag for one in verdict.by_tag],
        spent=format_dollars(verdict.spent_nano),
        lost_texts=sum(one.text is None for case in cases for side in SIDES for one in case.answers[side]),
        sides=SIDES,
        row_height=ROW_HEIGHT,
    )


def _cases(order: EvaluationOrder, found: Evaluated) -> list[ReportCase]:
    kept = {(one.score.case_number, one.score.run, one.score.side): one for one in found.answers}
    results = compare_cases(order.run.facts, pair_scores(found.scores))
    by_number = dict(order.run.asked)
    cases = list[ReportCase]()
    for one in results:
        number, case = one.facts.number, by_number[one.facts.number]
        scores = sorted((it for it in found.scores if it.case_number == number), key=lambda it: it.run)
        answers: dict[Side, tuple[ReportAnswer, ...]] = {
            side: tuple(
                ReportAnswer(it.run, it.score, it.fault, it.duration_ms, *_content(kept.get((number, it.run, side))))
                for it in scores
                if it.side == side
            )
            for side in SIDES
        }
        messages = tuple(_message(message) for message in case.messages)
        cases.append(
            ReportCase(number, case.id, case.tags, _outcome(one), one.incumbent, one.candidate, messages, answers)
        )
    return cases


def _content(answer: GradedAnswer | None) -> tuple[str | None, tuple[str, ...], str, str, str]:
    if answer is None:
        return None, (), "", "", ""
    reply = answer.reply
    calls = tuple(_cut(f"{call.name}({call.arguments})") for call in reply.calls)
    return _cut(reply.text), calls, _cut(reply.refusal), reply.finish_reason or "", answer.reason


def _message(message: dict[str, Any]) -> ReportMessage:
    content = message.get("content")
    calls = message.get("tool_calls")
    text = content if isinstance(content, str) else _json(content) if content else ""
    return ReportMessage(str(message["role"]), _cut("\n".join(filter(None, [text, _json(calls) if calls else ""]))))


def _outcome(result: CaseResult) -> str:
    return "win" if result.difference > 0 else "loss" if result.difference < 0 else "tie"


def _measures(found: Evaluated) -> list[ReportMeasure]:
    before, after = found.verdict.incumbent, found.verdict.candidate
    times = [
        (name, f"{field}_ms", "{:,.0f} ms")
        for name, field in (
            ("first token, p50", "first_p50"),
            ("first token, p95", "first_p95"),
            ("whole answer, p50", "whole_p50"),
            ("whole answer, p95", "whole_p95"),
        )
    ]
    measures = [_measure(name, (getattr(before, field), getattr(after, field)), shape) for name, field, shape in times]
    measures.append(_measure("tokens per answer", (before.tokens, after.tokens), "{:,.1f}"))
    cents = [None if side.cost_nano is None else side.cost_nano / 1e7 for side in (before, after)]
    measures.append(_measure("cost per answer", (cents[0], cents[1]), "{:,.4f} cents"))
    measures.append(_measure("faults", (before.faults, after.faults), "{:,}"))
    return measures


def _measure(name: str, values: tuple[float | None, float | None], shape: str) -> ReportMeasure:
    largest = max((value for value in values if value is not None), default=0.0)
    shares = [value / largest if value and largest else 0.0 for value in values]
    shown = ["not known" if value is None else shape.format(value) for value in values]
    return ReportMeasure(name, (shares[0], shares[1]), (shown[0], shown[1]))


def _checks(found: Evaluated) -> list[tuple[str, str, str]]:
    """Name and state of each check, of both sides."""
    by_side = [{check.name: check.state for check in found.verdict.side(side).conformance} for side in SIDES]
    names = dict.fromkeys(name for checks in by_side for name in checks)
    return [(name, by_side[0].get(name, "–"), by_side[1].get(name, "–")) for name in names]


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _cut(text: str) -> str:
    left = len(text) - CONTENT_CHARS_MAX
    return text if left <= 0 else f"{text[:CONTENT_CHARS_MAX]}\n[… {left:,} more characters]"
