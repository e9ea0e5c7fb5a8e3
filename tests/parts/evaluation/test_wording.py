"""Verdicts in words."""

import pytest

from cadenza.parts.evaluation.statistics import Interval
from cadenza.parts.evaluation.verdict import ConformanceCheck, describe_decision
from cadenza.parts.evaluation.verdict_output import print_verdict
from tests.parts.evaluation.verdicts import make_side, make_verdict

MIXED = (
    ConformanceCheck("stream", "warning"),
    ConformanceCheck("stop", "fault"),
    ConformanceCheck("tools", "warning"),
    ConformanceCheck("counts", "ok"),
)


@pytest.mark.parametrize(
    ("interval", "wins", "why"),
    [
        (Interval(-0.1, 0.7), 5, "The interval reaches below 0 and above 0: either side may be better."),
        (Interval(0.0, 0.7), 5, "The interval reaches from 0 to more than 0.02: a tie is possible, and so is a win."),
        (
            Interval(-0.7, 0.0),
            0,
            "The interval reaches from 0 to less than -0.02: a tie is possible, and so is a loss.",
        ),
        (Interval(0.1, 0.7), 2, "Only 3 of the cases differ, and fewer than 6 may be chance."),
    ],
)
def test_an_undecided_verdict_says_why_and_what_is_missing(interval: Interval, wins: int, why: str) -> None:
    """The counts and the reason belong to this evaluation, and the number of cases to the next one."""
    verdict = make_verdict(
        decision="undecided", difference=0.3, interval=interval, wins=wins, ties=9 - wins, cases_needed=24
    )
    assert verdict.why_undecided == why
    assert describe_decision(verdict, "acme/one").endswith(
        f"in 10 cases. {why} About 24 cases like these would decide."
    )
    assert make_verdict().why_undecided == ""


def test_checks_of_the_wire_are_listed_by_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Each state is named once, and checks that are ok are not. The total cost is an upper limit."""
    print_verdict(make_verdict(make_side(conformance=MIXED), spent_nano=740_000), "acme/one", "acme/two")
    printed = capsys.readouterr().out
    assert "fault: stop; warning: stream, tools" in printed
    assert "This evaluation has cost at most $0.00074." in printed
