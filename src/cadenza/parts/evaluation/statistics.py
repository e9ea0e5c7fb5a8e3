"""Statistics of a paired comparison: is the candidate better, worse, about equal, or is it not known yet? Pure.

The unit is the case: runs of one case are not independent, so they are averaged first. The interval of the mean
difference is a percentile bootstrap over cases, widened for few cases as in a t-interval. Intervals of several tags are
widened by their number (Bonferroni); with ten cases they are still too narrow.
It is seeded: the same scores always give the same verdict.
"""

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist
from typing import Literal

import msgspec

RESAMPLES = 10_000
AT_ONCE = 100  # resamples that are drawn in one call: to call for each takes up to twice as long
SEED = 23
UNCERTAINTY = 0.05  # of an interval, two-sided
TAGS_UNCERTAINTY = 0.01  # of the intervals of all tags together
Z_CONFIDENCE = NormalDist().inv_cdf(1 - UNCERTAINTY / 2)
Z_POWER = 0.841621  # 80 %
TIE_MARGIN = 0.02  # differences of the mean score below it do not matter
# If no side is better, n cases that differ all favour the same side with a probability of 2 / 2**n: below 5 % from six.
DIFFERING_CASES_MIN = 6

Decision = Literal["better", "worse", "tie", "undecided"]


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """A confidence interval of a mean: of 95 %, or wider if it is one of several."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:+.3f} to {self.high:+.3f}"


def mean(values: Sequence[float]) -> float:
    assert values
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values lies, interpolated; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def bootstrap_interval(
    differences: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED, uncertainty: float = UNCERTAINTY
) -> Interval:
    """The interval of the mean of these differences, one of each case."""
    count, first = len(differences), differences[0]
    if all(one == first for one in differences):
        return Interval(first, first)
    pick, means = Random(seed).choices, list[float]()  # noqa: S311 no secret
    while len(means) < resamples:
        picked = iter(pick(differences, k=count * min(AT_ONCE, resamples - len(means))))
        means += [total / count for total in map(math.fsum, zip(*[picked] * count, strict=True))]
    means.sort()
    tail = _tail_share(count, uncertainty)
    low, high = percentile(means, tail), percentile(means, 1 - tail)
    assert low is not None
    assert high is not None
    return Interval(low, high)


def decide(differing: int, interval: Interval) -> Decision:
    """What the differences (candidate minus incumbent) of the cases show; `differing` of them are not 0."""
    can_differ = differing >= DIFFERING_CASES_MIN
    if interval.low > 0 and can_differ:
        return "better"
    if interval.high < 0 and can_differ:
        return "worse"
    if interval.low >= -TIE_MARGIN and interval.high <= TIE_MARGIN:
        return "tie"
    return "undecided"


def cases_needed(differences: Sequence[float]) -> int:
    """About how many cases decide with a probability of 80 %, if further cases are like these.

    They show a difference that is as large as it seems, or that it is below the margin of a tie, whichever is sooner.
    """
    count, middle = len(differences), mean(differences)
    variance = math.fsum((one - middle) ** 2 for one in differences) / max(count - 1, 1)
    to_show = max(abs(middle), TIE_MARGIN - abs(middle))
    by_spread = math.ceil((Z_CONFIDENCE + Z_POWER) ** 2 * variance / to_show**2)
    differing = sum(one != 0 for one in differences)
    by_sign = math.ceil(DIFFERING_CASES_MIN * count / differing) if differing else count
    return max(by_spread, by_sign, count + 1)


def _tail_share(count: int, uncertainty: float) -> float:
    """The share of resamples outside of each end of the interval: fewer for few cases, whose spread seems too small.

    Percentile intervals are too narrow by the factor sqrt((n - 1) / n), and use the normal quantile instead of t's.
    """
    freedom = max(count - 1, 1)
    z = NormalDist().inv_cdf(1 - uncertainty / 2)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return math.erfc(t * math.sqrt(count / freedom) / math.sqrt(2)) / 2
