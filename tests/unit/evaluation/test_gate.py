"""The gate: from the numbers of a verdict to what is missing, and by how much."""

from typing import Any

import pytest

from cadenza.core.classes import GateLimits
from cadenza.evaluation.gate import find_shortfalls
from cadenza.evaluation.statistics import Interval
from cadenza.evaluation.verdict import ConformanceCheck, SideSummary
from tests.unit.evaluation.verdicts import make_side, make_tag, make_verdict

WORSE: dict[str, Any] = {
    "difference": -0.2,
    "interval": Interval(-0.3, -0.1),
    "decision": "worse",
    "losses": 4,
    "wins": 0,
}
FAULT = (ConformanceCheck("stream", "fault"),)


def test_a_tie_passes_without_limits() -> None:
    """Without a configured limit, a candidate that is not worse and speaks the protocol passes."""
    assert find_shortfalls(make_verdict(), GateLimits()) == []


def test_cases_that_had_no_judge_stop_the_candidate() -> None:
    """A part of the suite that was left out opens no gate."""
    [sentence] = find_shortfalls(make_verdict(skipped=2), GateLimits())
    assert sentence == "2 cases need a judge and had none: evaluate again with --judge CLASS."


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
        (GateLimits(max_p95_ratio=1.2), make_side(whole_p95_ms=15.0), "1.50 times as much"),
        (GateLimits(max_p95_ratio=1.2), make_side(whole_p95_ms=None), "no times to compare"),
        (GateLimits(must_pass=("tools",)), make_side(), "of 5 cases with the tag 'tools', it fails 2."),
        (
            GateLimits(must_pass=("tolos",)),
            make_side(),
            "has the tag 'tolos'; the tags are tools.",
        ),
        (GateLimits(), make_side(conformance=FAULT), "1 fault that the incumbent does not have: stream."),
        (GateLimits(), make_side(conformance=()), "conformance was not tried"),
    ],
)
def test_each_limit_says_by_how_much(limits: GateLimits, candidate: SideSummary, expected: str) -> None:
    """A limit that is not kept is one sentence with the number that was found and what is allowed."""
    [sentence] = find_shortfalls(make_verdict(candidate, by_tag=(make_tag("tools", 5, 3),)), limits)
    assert expected in sentence


def test_a_fault_that_the_incumbent_has_too_is_no_reason() -> None:
    """Conformance compares: a swap is not refused for what is the same before and after it."""
    both: Any = make_side(conformance=FAULT)
    assert find_shortfalls(make_verdict(both, incumbent=both), GateLimits()) == []


def test_a_stopped_evaluation_does_not_pass() -> None:
    """A verdict on a part of the suite is not enough."""
    [sentence] = find_shortfalls(make_verdict(is_complete=False), GateLimits())
    assert "stopped before every case" in sentence
