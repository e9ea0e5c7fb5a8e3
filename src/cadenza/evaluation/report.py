"""The report of an evaluation: one page with charts and the answers side by side, for the operator's own disk.

It is the only place where content of an evaluation is written. Messages and answers are hostile: the template escapes
everything, the page loads nothing, and its policy lets only its own script run.
"""

import secrets
from typing import Any

import jinja2
import msgspec

from cadenza.core.formats import rfc3339
from cadenza.evaluation.evaluate import Evaluated, EvaluationOrder
from cadenza.evaluation.runner import GradedAnswer
from cadenza.evaluation.suite import Case
from cadenza.evaluation.verdict import CaseResult, Verdict, compare_cases, describe_decision, pair_scores, show_cost
from cadenza.store.tables.verdicts import SIDES, AnswerScore, Side

CONTENT_CHARS_MAX = 20_000  # of one message or answer on the page
ROW_HEIGHT = 30  # of a tag in the chart
MEASURES = (  # of a side: name, field, factor and form
    ("first token, p50", "first_p50_ms", 1, "{:,.0f} ms"),
    ("first token, p95", "first_p95_ms", 1, "{:,.0f} ms"),
    ("whole answer, p50", "whole_p50_ms", 1, "{:,.0f} ms"),
    ("whole answer, p95", "whole_p95_ms", 1, "{:,.0f} ms"),
    ("tokens per answer", "tokens", 1, "{:,.1f}"),
    ("cost per answer", "cost_nano", 1e-7, "{:,.4f} cents"),
    ("faults", "faults", 1, "{:,}"),
)


class ReportCase(msgspec.Struct, frozen=True):
    """One case, and the answers of both sides with their scores; None for an answer whose text was not kept."""

    case: Case
    result: CaseResult
    outcome: str
    answers: dict[Side, list[tuple[AnswerScore, GradedAnswer | None]]]


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
        measures=_measures(verdict),
        checks=_checks(verdict),
        cases=cases,
        tags=[one.tag for one in verdict.by_tag],
        spent=show_cost(verdict.spent_nano),
        lost_texts=sum(kept is None for case in cases for side in SIDES for _, kept in case.answers[side]),
        sides=SIDES,
        row_height=ROW_HEIGHT,
    )


def _cases(order: EvaluationOrder, found: Evaluated) -> list[ReportCase]:
    kept = {(one.score.case_number, one.score.run, one.score.side): one for one in found.answers}
    by_number, scores = dict(order.run.asked), sorted(found.scores, key=lambda one: one.run)
    cases = list[ReportCase]()
    for result in compare_cases(order.run.facts, pair_scores(found.scores)):
        number = result.facts.number
        answers: dict[Side, list[tuple[AnswerScore, GradedAnswer | None]]] = {side: [] for side in SIDES}
        for one in scores:
            if one.case_number == number:
                answers[one.side].append((one, kept.get((number, one.run, one.side))))
        outcome = "win" if result.difference > 0 else "loss" if result.difference < 0 else "tie"
        cases.append(ReportCase(by_number[number], result, outcome, answers))
    return cases


def _measures(verdict: Verdict) -> list[tuple[str, list[float], list[str]]]:
    """Pairs of bars: their name, shares of the larger value, and the values as text."""
    measures = list[tuple[str, list[float], list[str]]]()
    for name, field, factor, form in MEASURES:
        found = [getattr(verdict.side(side), field) for side in SIDES]
        largest = max((value for value in found if value is not None), default=0) or 1
        shown = ["not known" if value is None else form.format(value * factor) for value in found]
        measures.append((name, [(value or 0) / largest for value in found], shown))
    return measures


def _checks(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Name and state of each check, of both sides."""
    by_side = [{check.name: check.state for check in verdict.side(side).conformance} for side in SIDES]
    names = dict.fromkeys(name for checks in by_side for name in checks)
    return [(name, by_side[0].get(name, "–"), by_side[1].get(name, "–")) for name in names]


def _text(message: dict[str, Any]) -> str:
    """The content of a message and its tool calls."""
    parts = [part for part in (message.get("content"), message.get("tool_calls")) if part]
    return "\n".join(
        part if isinstance(part, str) else msgspec.json.format(msgspec.json.encode(part), indent=2).decode()
        for part in parts
    )


def _cut(text: str) -> str:
    left = len(text) - CONTENT_CHARS_MAX
    return text if left <= 0 else f"{text[:CONTENT_CHARS_MAX]}\n[… {left:,} more characters]"


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("cadenza.evaluation", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
)
ENVIRONMENT.filters |= {"text": _text, "cut": _cut}
