"""The verdict: what a comparison of two sides showed, as numbers. It is stored as JSON, and has no content.

A case counts once, with the mean score of its runs. It is passed if every run has the full score. Only runs that
both sides have answered count.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.parts.evaluation.statistics import (
    DIFFERING_CASES_MIN,
    TAGS_UNCERTAINTY,
    TIE_MARGIN,
    Decision,
    Interval,
    bootstrap_interval,
    cases_needed,
    decide,
    mean,
    percentile,
)

EQUAL = 1e-9  # scores this close are equal: they are sums of floats
FULL_SCORE = 1.0
NANO_STEP = 10_000

Side = Literal["incumbent", "candidate"]
SIDES: tuple[Side, Side] = ("incumbent", "candidate")
CheckState = Literal["ok", "warning", "fault"]
CHECK_STATES: tuple[CheckState, ...] = ("ok", "warning", "fault")  # from good to bad


class AnswerScore(msgspec.Struct, frozen=True, kw_only=True):
    """One graded answer of one side. `fault` is the kind of upstream fault that left it without an answer, or empty."""

    case_number: int  # its place in the suite, from 1
    run: int  # from 1
    side: Side
    score: float  # from 0 to 1
    cost_nano: int | None = None  # None if the costs of the route are not known
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_ms: float | None = None
    duration_ms: float | None = None
    fault: str = ""


class ConformanceCheck(msgspec.Struct, frozen=True):
    """What one side does with one kind of request."""

    name: str
    state: CheckState


class WireChecks(msgspec.Struct, frozen=True):
    """What the checks of a side found, and how many requests they took. `repeated` counts those that failed first.

    `advice` has a sentence for each finding that is not ok, with the setting that mends it.
    """

    checks: tuple[ConformanceCheck, ...] = ()
    requests: int = 0
    repeated: int = 0
    advice: tuple[str, ...] = ()


NOT_TRIED = WireChecks()


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one side. Times are of answers without a fault."""

    score: float  # mean of all cases, from 0 to 1
    passes: int  # cases
    faults: int  # answers that an upstream fault prevented
    cost_nano: float | None  # of one answer; None if it is not known
    tokens: float  # of one answer
    first_p50_ms: float | None
    first_p95_ms: float | None
    whole_p50_ms: float | None
    whole_p95_ms: float | None
    conformance: tuple[ConformanceCheck, ...] = ()
    repeated: int = 0  # requests of the checks that failed at first


class TagSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that have one tag."""

    tag: str
    cases: int
    wins: int  # of the candidate
    losses: int
    ties: int
    incumbent: float  # scores
    candidate: float
    interval: Interval  # of the difference, candidate minus incumbent, widened by the number of tags
    incumbent_passes: int
    candidate_passes: int
    only_incumbent_passes: int  # cases

    @property
    def is_worse(self) -> bool:
        return decide(self.wins + self.losses, self.interval) == "worse"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    decision: Decision
    cases: int
    runs: int
    wins: int  # cases in which the candidate has the higher score
    losses: int
    ties: int
    difference: float  # mean score, candidate minus incumbent
    interval: Interval
    cases_needed: int | None  # None unless it is undecided
    incumbent: SideSummary
    candidate: SideSummary
    by_tag: tuple[TagSummary, ...]
    spent_nano: int
    is_cost_known: bool  # else the price of the class was counted as the cost, and `spent_nano` is an estimate
    is_complete: bool = True  # False: stopped before every case was asked

    @property
    def cost_ratio(self) -> float | None:
        """Candidate / incumbent, per answer. None if a cost is not known, or only the incumbent's is 0."""
        before, after = self.incumbent.cost_nano, self.candidate.cost_nano
        return None if before is None or after is None else _ratio(before, after)

    @property
    def p95_ratio(self) -> float | None:
        """Candidate / incumbent: the 95th percentile of the time to the whole answer."""
        before, after = self.incumbent.whole_p95_ms, self.candidate.whole_p95_ms
        return None if before is None or after is None else _ratio(before, after)

    @property
    def why_undecided(self) -> str:
        """A sentence; empty if it is decided."""
        low, high, differing = self.interval.low, self.interval.high, self.wins + self.losses
        if self.decision != "undecided":
            return ""
        if low > 0 or high < 0:
            return f"Only {differing} of the cases differ, and fewer than {DIFFERING_CASES_MIN} may be chance."
        if low < 0 < high:
            return "The interval reaches below 0 and above 0: either side may be better."
        beyond, what = (f"more than {TIE_MARGIN}", "win") if high > 0 else (f"less than -{TIE_MARGIN}", "loss")
        return f"The interval reaches from 0 to {beyond}: a tie is possible, and so is a {what}."

    def tag(self, name: str) -> TagSummary | None:
        return next((one for one in self.by_tag if one.tag == name), None)


class CaseFacts(msgspec.Struct, frozen=True):
    """What a verdict needs to know of a case: its number in the suite and its tags."""

    number: int
    tags: tuple[str, ...]


class CaseResult(msgspec.Struct, frozen=True):
    """The scores of both sides for one case: means of its runs, and whether every run passed."""

    facts: CaseFacts
    incumbent: float
    candidate: float
    incumbent_passes: bool
    candidate_passes: bool

    @property
    def difference(self) -> float:
        found = self.candidate - self.incumbent
        return 0.0 if abs(found) < EQUAL else found


def show_cost(nano: float) -> str:
    """Dollars, rounded up to a thousandth of a cent, so that nothing is shown as free that is not."""
    return format_dollars(math.ceil(nano / NANO_STEP) * NANO_STEP)


def describe_decision(verdict: Verdict, candidate: str) -> str:
    """The verdict in one sentence."""
    span = str(verdict.interval)
    wins, losses, ties = _count(verdict.wins, "win"), _count(verdict.losses, "loss"), _count(verdict.ties, "tie")
    counts = f"{wins}, {losses} and {ties} in {_count(verdict.cases, 'case')}"
    needed = ""
    match verdict.decision:
        case "better":
            said = f"{candidate} is better: its score is {verdict.difference:.3f} higher (95% interval {span})"
        case "worse":
            said = f"{candidate} is worse: its score is {-verdict.difference:.3f} lower (95% interval {span})"
        case "tie":
            said = f"A tie: the scores differ by less than {TIE_MARGIN} (95% interval {span})"
        case "undecided":
            said = f"Undecided: the scores differ by {verdict.difference:+.3f} (95% interval {span})"
            needed = f" {verdict.why_undecided} About {verdict.cases_needed} cases like these would decide."
    partial = "" if verdict.is_complete else " The evaluation was stopped early, so this is a part of the suite."
    return f"{said}, with {counts}.{needed}{partial}"


def reach_verdict(
    cases: Sequence[CaseFacts],
    scores: Sequence[AnswerScore],
    runs: int,
    *,
    wires: tuple[WireChecks, WireChecks] = (NOT_TRIED, NOT_TRIED),
    spent_nano: int | None = None,
) -> Verdict:
    """The verdict on these answers. ValueError if there is not one case that both sides have answered.

    `spent_nano` is given if costs are not known, as an estimate.
    """
    paired = pair_scores(scores)
    results = compare_cases(cases, paired)
    if not results:
        raise ValueError("no case was answered by both sides, so there is nothing to compare")
    differences = [one.difference for one in results]
    interval = bootstrap_interval(differences)
    wins, losses = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    decision = decide(wins + losses, interval)
    known = [one.cost_nano for one in scores if one.cost_nano is not None]
    tags = sorted({tag for one in results for tag in one.facts.tags})
    return Verdict(
        decision=decision,
        cases=len(results),
        runs=runs,
        wins=wins,
        losses=losses,
        ties=len(results) - wins - losses,
        difference=mean(differences),
        interval=interval,
        cases_needed=cases_needed(differences) if decision == "undecided" else None,
        incumbent=_summarize(results, paired, "incumbent", wires[0]),
        candidate=_summarize(results, paired, "candidate", wires[1]),
        by_tag=tuple(_summarize_tag(tag, results, len(tags)) for tag in tags),
        spent_nano=sum(known) if spent_nano is None else spent_nano,
        is_cost_known=len(known) == len(scores),
        is_complete=len(paired) == len(cases) * runs * len(SIDES),
    )


def pair_scores(scores: Iterable[AnswerScore]) -> list[AnswerScore]:
    """The scores whose case and run both sides have answered."""
    found = {(one.case_number, one.run, one.side): one for one in scores}
    complete = {(number, run) for number, run, _ in found if all((number, run, side) in found for side in SIDES)}
    return [one for (number, run, _), one in found.items() if (number, run) in complete]


def compare_cases(cases: Sequence[CaseFacts], paired: Sequence[AnswerScore]) -> list[CaseResult]:
    """The cases that have been answered, in the order of the suite."""
    by_case = dict[tuple[int, Side], list[float]]()
    for one in paired:
        by_case.setdefault((one.case_number, one.side), []).append(one.score)
    results = list[CaseResult]()
    for facts in cases:
        before, after = (by_case.get((facts.number, side)) for side in SIDES)
        if before and after:
            enough = FULL_SCORE - EQUAL
            results.append(
                CaseResult(facts, mean(before), mean(after), min(before) >= enough, min(after) >= enough),
            )
    return results


def _summarize(
    results: Sequence[CaseResult], scores: Sequence[AnswerScore], side: Side, wire: WireChecks
) -> SideSummary:
    own = [one for one in scores if one.side == side]
    costs = [one.cost_nano for one in own if one.cost_nano is not None]
    answered = [one for one in own if not one.fault]
    firsts = [one.first_token_ms for one in answered if one.first_token_ms is not None]
    wholes = [one.duration_ms for one in answered if one.duration_ms is not None]
    is_candidate = side == "candidate"
    return SideSummary(
        score=mean([one.candidate if is_candidate else one.incumbent for one in results]),
        passes=sum(one.candidate_passes if is_candidate else one.incumbent_passes for one in results),
        faults=len(own) - len(answered),
        cost_nano=mean(costs) if len(costs) == len(own) else None,
        tokens=mean([one.completion_tokens for one in answered]) if answered else 0.0,
        first_p50_ms=percentile(firsts, 0.5),
        first_p95_ms=percentile(firsts, 0.95),
        whole_p50_ms=percentile(wholes, 0.5),
        whole_p95_ms=percentile(wholes, 0.95),
        conformance=wire.checks,
        repeated=wire.repeated,
    )


def _summarize_tag(tag: str, results: Sequence[CaseResult], tags: int) -> TagSummary:
    own = [one for one in results if tag in one.facts.tags]
    differences = [one.difference for one in own]
    wins, losses = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    return TagSummary(
        tag=tag,
        cases=len(own),
        wins=wins,
        losses=losses,
        ties=len(own) - wins - losses,
        incumbent=mean([one.incumbent for one in own]),
        candidate=mean([one.candidate for one in own]),
        interval=bootstrap_interval(differences, uncertainty=TAGS_UNCERTAINTY / tags),
        incumbent_passes=sum(one.incumbent_passes for one in own),
        candidate_passes=sum(one.candidate_passes for one in own),
        only_incumbent_passes=sum(one.incumbent_passes and not one.candidate_passes for one in own),
    )


def _ratio(before: float, after: float) -> float | None:
    if before:
        return after / before
    return None if after else 1.0


def _count(number: int, noun: str) -> str:
    """'1 loss', '2 losses'."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
