"""Verdicts with chosen numbers."""

from typing import Any

import msgspec

from cadenza.parts.evaluation.statistics import Interval
from cadenza.parts.evaluation.verdict import ConformanceCheck, SideSummary, TagSummary, Verdict

OK = (ConformanceCheck("stream", "ok"), ConformanceCheck("tools", "warning"))


def make_side(**fields: Any) -> SideSummary:
    usual = {"score": 0.8, "passes": 8, "faults": 0, "cost_nano": 100.0, "tokens": 20.0, "conformance": OK}
    times = dict.fromkeys(("first_p50_ms", "first_p95_ms", "whole_p50_ms", "whole_p95_ms"), 10.0)
    return SideSummary(**{**usual, **times, **fields})


def make_tag(tag: str, cases: int, passes: int, **fields: Any) -> TagSummary:
    """A tag whose cases the incumbent all passes."""
    made = TagSummary(
        tag=tag,
        cases=cases,
        wins=0,
        losses=0,
        ties=cases,
        incumbent=1.0,
        candidate=1.0,
        interval=Interval(0, 0),
        incumbent_passes=cases,
        candidate_passes=passes,
        only_incumbent_passes=cases - passes,
    )
    return msgspec.structs.replace(made, **fields)


def make_verdict(candidate: SideSummary | None = None, **fields: Any) -> Verdict:
    """A tie, unless told otherwise."""
    usual: dict[str, Any] = {
        "decision": "tie",
        "cases": 10,
        "runs": 3,
        "wins": 1,
        "losses": 1,
        "ties": 8,
        "difference": 0.0,
        "interval": Interval(-0.01, 0.01),
        "cases_needed": None,
        "incumbent": make_side(),
        "candidate": candidate or make_side(),
        "by_tag": (),
        "spent_nano": 0,
        "is_cost_known": True,
    }
    return Verdict(**{**usual, **fields})
