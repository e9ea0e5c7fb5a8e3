"""The interval of a comparison holds what it says, and decisions follow from it."""

from random import Random

import pytest

from cadenza.parts.evaluation.statistics import (
    RESAMPLES,
    TIE_MARGIN,
    Interval,
    bootstrap_interval,
    cases_needed,
    decide,
    mean,
    percentile,
)


def scores_of(rng: Random, count: int, shift: float) -> list[float]:
    """Differences like those of a suite: most cases are equal, some are won and some are lost."""
    win, loss = 0.15 + shift / 2, 0.15 - shift / 2
    return [1.0 if draw < win else -1.0 if draw > 1 - loss else 0.0 for draw in (rng.random() for _ in range(count))]


def decided(differences: list[float], resamples: int = RESAMPLES) -> str:
    return decide(sum(one != 0 for one in differences), bootstrap_interval(differences, resamples))


def test_equal_scores_are_a_tie() -> None:
    """If no case differs, the interval is [0, 0] and the decision is a tie."""
    differences = [0.0] * 20
    interval = bootstrap_interval(differences)
    assert interval == Interval(0.0, 0.0)
    assert decide(0, interval) == "tie"


def test_the_interval_is_repeatable() -> None:
    """The same differences give the same interval."""
    differences = scores_of(Random(1), 60, 0.1)
    assert bootstrap_interval(differences) == bootstrap_interval(differences)


def test_the_interval_of_few_cases_is_wider() -> None:
    """It is widened as a t-interval is: for eight cases, fewer resamples are outside than for many."""
    interval = bootstrap_interval([0.2, -0.1, 0.4, 0.3, 0.1, -0.2, 0.5, 0.3])
    assert interval.low == pytest.approx(-0.025)
    assert interval.high == pytest.approx(0.375)


@pytest.mark.slow(reason="draws thousands of samples")
@pytest.mark.parametrize("count", [20, 60])
def test_the_interval_covers_the_true_difference(count: int) -> None:
    """Over 300 seeded suites, the interval holds the true difference about 95 times out of 100."""
    rng = Random(count)
    covered = 0
    for _ in range(300):
        interval = bootstrap_interval(scores_of(rng, count, 0.1), resamples=400)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.92 <= covered / 300 <= 0.99


@pytest.mark.slow(reason="draws thousands of samples")
def test_a_wrong_decision_is_rare() -> None:
    """Of 300 suites of 60 cases with equal sides, at most 7 % are decided as better or worse."""
    rng = Random(7)
    wrong = 0
    for _ in range(300):
        differences = scores_of(rng, 60, 0.0)
        wrong += decided(differences, resamples=400) in ("better", "worse")
    assert wrong <= 21


@pytest.mark.parametrize(
    ("differences", "decision"),
    [
        ([1.0] * 30 + [0.0] * 30, "better"),
        ([-1.0] * 30 + [0.0] * 30, "worse"),
        ([1.0, -1.0] * 6, "undecided"),
        ([0.001, -0.001] * 6, "tie"),
        ([1.0] * 5, "undecided"),  # five of five may be chance
        ([1.0] * 6, "better"),
    ],
)
def test_decisions(differences: list[float], decision: str) -> None:
    """A side is better or worse if the interval is on one side of 0 and at least six cases differ."""
    assert decided(differences) == decision


def test_the_cases_that_are_needed_decide() -> None:
    """Suites of as many cases as an undecided one asks for are decided about four times out of five."""
    rng = Random(3)
    needed = cases_needed(scores_of(rng, 40, 0.1))
    assert needed > 40
    exact = [1.0] * 20 + [-1.0] * 10 + [0.0] * 70  # a difference of 0.1, with exactly the spread of `scores_of`
    count = cases_needed(exact)
    sure = 0
    for _ in range(100):
        differences = scores_of(rng, count, 0.1)
        sure += decided(differences, resamples=300) != "undecided"
    assert 65 <= sure <= 95


def test_few_equal_wins_need_more_cases() -> None:
    """Three wins of three are undecided, and six such cases would decide."""
    assert cases_needed([1.0, 1.0, 1.0]) == 6


def test_a_difference_within_the_margin_is_shown_to_be_a_tie() -> None:
    """A mean of exactly 0 with some spread needs the cases that show a tie, not infinitely many."""
    assert 0 < cases_needed([1.0, -1.0] * 10) <= (2.81 / TIE_MARGIN) ** 2 * 1.1


def test_percentiles_are_interpolated() -> None:
    """The median of an even number of values is between the two in the middle; no values have no percentile."""
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([], 0.5) is None
    assert mean([1.0, 2.0]) == 1.5
