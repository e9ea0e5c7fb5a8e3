"""Verdicts in words."""

import pytest

from cadenza.cli.verdict_output import print_verdict
from cadenza.evaluation.statistics import Interval
from cadenza.evaluation.verdict import ConformanceCheck, describe_decision
from tests.unit.evaluation.verdicts import make_side, make_verdict

MIXED = (
    ConformanceCheck("stream", "warning"),
    ConformanceCheck("stop", "fault"),
    ConformanceCheck("tools", "warning"),
    ConformanceCheck("counts", "ok"),
)


def test_an_undecided_verdict_says_what_was_counted_and_then_what_is_missing() -> None:
    """The counts belong to this evaluation, and the number of cases to the next one."""
    verdict = make_verdict(decision="undecided", difference=0.3, interval=Interval(0.0, 1.0), cases_needed=24)
    assert describe_decision(verdict, "acme/one") == (
        "Undecided: the scores differ by +0.300 (95% interval +0.000 to +1.000), with 1 win, 1 loss and 8 ties in 10 "
        "cases. About 24 cases like these would decide."
    )


def test_checks_of_the_wire_are_listed_by_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Each state is named once, and checks that are ok are not. The total cost is an upper limit."""
    print_verdict(make_verdict(make_side(conformance=MIXED), spent_nano=740_000), "acme/one", "acme/two")
    printed = capsys.readouterr().out
    assert "fault: stop; warning: stream, tools" in printed
    assert "This evaluation has cost at most $0.00074." in printed
