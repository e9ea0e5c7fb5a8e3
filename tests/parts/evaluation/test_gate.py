"""The gate: from the numbers of a verdict to what is missing, and by how much."""

from typing import Any

import pytest

from cadenza.core.classes import GateLimits
from cadenza.parts.evaluation.gate import find_shortfalls
from cadenza.parts.evaluation.statistics import Interval
from cadenza.parts.evaluation.verdict import ConformanceCheck, SideSummary
from tests.parts.evaluation.verdicts import make_side, make_tag, make_verdict

WORSE: dict[str, Any] = {
    "difference": -0.2,
    "interval": Interval(-0.3, -0.1),
    "decision": "worse",
    "losses": 4,
    "wins": 0,
}
FAULT = (ConformanceCheck("stream", "fault"),)
WARNING = (ConformanceCheck("stream", "warning"),)
SLOW = make_side(whole_p95_ms=200.0)


def test_a_tie_passes_without_limits() -> None:
    """Without a configured limit, a candidate that is not worse and speaks the protocol passes."""
    assert find_shortfalls(make_verdict(), GateLimits()) == []


def test_a_worse_candidate_is_stopped_without_limits() -> None:
    """Without a configured limit, an interval wholly below zero stops the candidate, with its numbers."""
    [sentence] = find_shortfalls(make_verdict(**WORSE), GateLimits())
    assert sentence == (
        "It is worse than the incumbent by 0.200 in score (between 0.100 and 0.300), with 4 losses and 0 wins."
    )


def test_a_limit_on_scores_replaces_the_comparison() -> None:
    """An operator who sets min_score or max_losses may accept a candidate that is a little worse."""
    assert find_shortfalls(make_verdict(**WORSE), GateLimits(min_score=0.7)) == []
    assert find_shortfalls(make_verdict(**WORSE), GateLimits(max_losses=4)) == []


@pytest.mark.parametrize(
    ("limits", "candidate", "expected"),
    [
        (GateLimits(min_score=0.9), make_side(score=0.75), "min_score: its score is 0.750 of 0.900: 0.150 too low."),
        (
            GateLimits(max_losses=0),
            make_side(),
            "max_losses: it loses 1 cases, and 0 are allowed: 1 too many.",
        ),
        (
            GateLimits(max_cost_ratio=1.5),
            make_side(cost_nano=200.0),
            "max_cost_ratio: it costs 2.00 times as much as the incumbent, and 1.50 is allowed: 0.50 above.",
        ),
        (GateLimits(max_cost_ratio=1.5), make_side(cost_nano=None), "cost_input and cost_output"),
        (GateLimits(max_p95_ratio=1.2), make_side(whole_p95_ms=300.0), "1.50 times as much"),
        (GateLimits(max_p95_ratio=1.2), make_side(whole_p95_ms=None), "no times to compare"),
        (
            GateLimits(must_pass=("tools",)),
            make_side(),
            "of 5 cases with the tag 'tools' that the incumbent passes, it fails 2.",
        ),
        (
            GateLimits(must_pass=("tolos",)),
            make_side(),
            "has the tag 'tolos'; the tags are tools.",
        ),
        (GateLimits(), make_side(conformance=FAULT), "worse than the incumbent's: stream (ok -> fault)."),
        (GateLimits(), make_side(conformance=WARNING), "worse than the incumbent's: stream (ok -> warning)."),
        (GateLimits(), make_side(conformance=()), "conformance was not tried"),
        (GateLimits(), make_side(cost_nano=151.0), "it costs 1.51 times as much as the incumbent, and 1.50 is allowed"),
        (GateLimits(), make_side(whole_p95_ms=410.0), "2.05 times as much as the incumbent, and 2.00 is allowed"),
    ],
)
def test_each_limit_says_by_how_much(limits: GateLimits, candidate: SideSummary, expected: str) -> None:
    """A limit that is not kept is one sentence with the number that was found and what is allowed."""
    verdict = make_verdict(candidate, incumbent=SLOW, by_tag=(make_tag("tools", 5, 3),))
    [sentence] = find_shortfalls(verdict, limits)
    assert expected in sentence


@pytest.mark.parametrize("limits", [GateLimits(), GateLimits(min_score=0.5), GateLimits(max_losses=20)])
def test_a_tag_that_became_worse_closes_the_gate(limits: GateLimits) -> None:
    """A tag whose interval lies below zero is named, even if the scores of all cases are a tie or have a limit."""
    lost = make_tag("tools", 14, 6, losses=8, ties=6, candidate=0.43, interval=Interval(-0.86, -0.14))
    [sentence] = find_shortfalls(make_verdict(by_tag=(make_tag("json", 10, 10), lost)), limits)
    assert sentence == (
        "It is worse at 'tools': 1.000 -> 0.430 (difference -0.860 to -0.140), with 8 losses and 0 wins in 14 cases."
    )


def test_a_few_lost_cases_of_a_tag_are_no_reason() -> None:
    """Five cases that differ may be chance, however clear their interval is; so may an interval that reaches zero."""
    few = make_tag("tools", 5, 0, losses=5, ties=0, candidate=0.0, interval=Interval(-1.0, -1.0))
    unclear = make_tag("json", 10, 4, losses=6, ties=4, candidate=0.4, interval=Interval(-0.9, 0.0))
    assert find_shortfalls(make_verdict(by_tag=(few, unclear)), GateLimits()) == []


def test_must_pass_is_about_what_the_incumbent_passes() -> None:
    """A candidate need not pass what the incumbent fails, too: otherwise a better one could be refused."""
    tag = make_tag("tools", 14, 12, incumbent_passes=11, only_incumbent_passes=0)
    assert find_shortfalls(make_verdict(by_tag=(tag,)), GateLimits(must_pass=("tools",))) == []


def test_usual_limits_need_numbers_that_matter() -> None:
    """Unknown costs and answers of a few milliseconds close no gate, unless the config has a limit for them."""
    for candidate in (make_side(cost_nano=None), make_side(whole_p95_ms=199.0), make_side(whole_p95_ms=None)):
        assert find_shortfalls(make_verdict(candidate), GateLimits()) == []
    assert find_shortfalls(make_verdict(make_side(cost_nano=190.0)), GateLimits(max_cost_ratio=2.0)) == []


def test_a_check_that_the_incumbent_was_not_given_may_have_a_warning() -> None:
    """The embedded model is tried with few requests: a warning of another check is no step back, a fault is."""
    for check, closes in ((ConformanceCheck("forced", "warning"), False), (ConformanceCheck("forced", "fault"), True)):
        assert bool(find_shortfalls(make_verdict(make_side(conformance=(check,))), GateLimits())) == closes


def test_a_fault_that_the_incumbent_has_too_is_no_reason() -> None:
    """Conformance compares: a swap is not refused for what is the same before and after it."""
    both: Any = make_side(conformance=FAULT)
    assert find_shortfalls(make_verdict(both, incumbent=both), GateLimits()) == []


def test_a_stopped_evaluation_does_not_pass() -> None:
    """A verdict on a part of the suite is not enough."""
    [sentence] = find_shortfalls(make_verdict(is_complete=False), GateLimits())
    assert "stopped before every case" in sentence
