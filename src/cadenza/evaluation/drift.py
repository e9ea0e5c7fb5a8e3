"""Whether a model behaves as it did: the newest watches against the reference, case by case. Pure.

The scores of the newest watch, and of the newest two, four and eight together, are compared with the reference by an
exact test: if nothing has changed, the reference is one of a case's answers like any other, so the number of cases that
it passes has a known distribution. A change that is too small for one watch is suspected, and is drift if it stays.
Tokens and the time to the first token are compared by exact sign tests over the cases that both have answered. If
nothing has changed, a measure drifts in a watch with a probability of at most `FALSE_ALARM`. At one watch a day that is
at most one false alarm of a measure in three years. Cases without an answer say nothing about the model.

    measure      what counts as drift
    score        more cases are lost than won, or won than lost, than chance explains
    tokens       in most cases the answer is more than twice as long, or less than half
    latency      in most cases the first token takes more than twice as long, and it did in the watch before too
    conformance  a check of the wire has another result, and has it again when it is repeated
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from cadenza.evaluation.statistics import mean
from cadenza.evaluation.verdict import EQUAL, FULL_SCORE, ConformanceCheck, SideSummary
from cadenza.store.tables.verdicts import AnswerScore

FALSE_ALARM = 0.001  # of one measure in one watch
SUSPICION = 0.05  # of the score: what chance explains less often is suspected
WINDOWS = (1, 2, 4, 8)  # how many of the newest watches are compared together
RATIO = 2.0  # changes of tokens and times below it do not count
TOKENS_MIN = 8  # of an answer: the length of shorter ones says little
LATENCY_MS_MIN = 20.0  # faster than that counts as this fast

Finding = Literal["reference", "steady", "suspect", "drift"]
Measure = Literal["score", "tokens", "latency", "conformance"]
MEASURES: tuple[Measure, ...] = ("score", "tokens", "latency", "conformance")


class Drift(msgspec.Struct, frozen=True):
    """A measure that has changed, and how, in numbers and names of checks."""

    measure: Measure
    detail: str


class WatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch found. `suspected` is a measure whose drift is confirmed if the next watches find it too."""

    summary: SideSummary
    reference_id: str | None = None  # None: this watch is the reference
    drifts: tuple[Drift, ...] = ()
    suspected: tuple[Measure, ...] = ()
    comparison: str = ""  # the scores of the reference and of this watch, in numbers

    @property
    def finding(self) -> Finding:
        if self.drifts:
            return "drift"
        if self.suspected:
            return "suspect"
        return "steady" if self.reference_id else "reference"


class ScoreComparison(msgspec.Struct, frozen=True):
    """The newest watch against the reference, and how often chance explains such a difference."""

    detail: str
    chance: float


def _tail(count: int, at_least: int) -> float:
    """The probability of at least this many heads in `count` tosses of a coin."""
    ways: int = sum(math.comb(count, one) for one in range(at_least, count + 1))
    return ways / (1 << count)


def find_drift(
    reference: Sequence[AnswerScore], watches: Sequence[Sequence[AnswerScore]], suspected: Sequence[Measure] = ()
) -> tuple[list[Drift], list[Measure], str]:
    """What has changed since the reference, what is suspected, and the scores in words.

    `watches` begins with the newest, which is judged. `suspected` is what the watch before suspected.
    """
    before, now = _by_case(reference), _by_case(watches[0])
    pairs = [(before[number], now[number]) for number in sorted(before.keys() & now.keys())]
    scores = _compare_scores(before, [_by_case(one) for one in watches[: WINDOWS[-1]]])
    longer = _compare_ratio([(_tokens(old), _tokens(new)) for old, new in pairs])
    slower = _compare_ratio([(_first_ms(old), _first_ms(new)) for old, new in pairs], both_ways=False)
    found, doubtful = list[Drift](), list[Measure]()
    if scores.chance <= FALSE_ALARM:
        found.append(Drift("score", scores.detail))
    elif scores.chance <= SUSPICION:
        doubtful.append("score")
    if longer:
        found.append(Drift("tokens", f"{longer} tokens"))
    if slower:
        doubtful.append("latency")
        if "latency" in suspected:
            found.append(Drift("latency", f"{slower} ms to the first token"))
    return found, doubtful, scores.detail


def changed_checks(
    reference: Iterable[ConformanceCheck], *tries: Iterable[ConformanceCheck]
) -> list[tuple[str, str, str]]:
    """Checks whose state is not the reference's in any of the tries: name, state before and now."""
    seen = [{check.name: check.state for check in one} for one in tries]
    return [
        (check.name, check.state, seen[-1][check.name])
        for check in reference
        if all(one.get(check.name, check.state) != check.state for one in seen)
    ]


def conformance_drift(changed: Sequence[tuple[str, str, str]]) -> Drift | None:
    if not changed:
        return None
    return Drift("conformance", "; ".join(f"{name}: {before} -> {now}" for name, before, now in changed))


def _by_case(scores: Iterable[AnswerScore]) -> dict[int, AnswerScore]:
    """The answer to each case. Faults are left out: they are about the upstream at that time, not about the model."""
    return {one.case_number: one for one in scores if not one.fault}


def _tokens(answer: AnswerScore) -> float:
    return max(TOKENS_MIN, answer.completion_tokens)


def _first_ms(answer: AnswerScore) -> float:
    return max(LATENCY_MS_MIN, answer.first_token_ms or 0.0)


def _compare_scores(
    reference: Mapping[int, AnswerScore], watches: Sequence[Mapping[int, AnswerScore]]
) -> ScoreComparison:
    """The chance is the smallest of the windows', times their number: it holds for all of them together.

    A window only counts if the newest watch has changed in its direction: what was mended does not drift any more.
    """
    passes = [{number: _passes(one) for number, one in watch.items() if number in reference} for watch in watches]
    newest = [(_passes(reference[number]), passed) for number, passed in passes[0].items()]
    worse, better = (sum(then == one != now for then, now in newest) for one in (True, False))
    windows = [count for count in WINDOWS if count <= len(watches)]
    chances = list[tuple[float, int]]()
    for count in windows:
        cases = [
            (_passes(one), later)
            for number, one in reference.items()
            if (later := [watch[number] for watch in passes[:count] if number in watch])
        ]
        change, chance = chance_of(cases)
        if count == 1 or change * (better - worse) > 0:
            chances.append((min(1.0, chance * len(windows)), count))
    chance, count = min(chances)
    before, now = (mean([float(pair[place]) for pair in newest]) if newest else 0.0 for place in (0, 1))
    detail = f"{before:.3f} -> {now:.3f}; of {len(newest)} cases {worse} are worse and {better} better"
    over = f" over the last {count} watches" if count > 1 else ""
    return ScoreComparison(f"{detail}, by chance with a probability of {chance:.1g}{over}", chance)


def chance_of(cases: Sequence[tuple[bool, Sequence[bool]]]) -> tuple[float, float]:
    """How many more cases are passed than by the reference, and how often chance explains as much: two-sided.

    A case is whether the reference passes it, and whether later watches do. If nothing has changed, the reference is
    any of these answers: it passes with the share of them that pass.
    """
    ways = [1.0]  # the probability of each number of passes
    for then, later in cases:
        share = (then + sum(later)) / (1 + len(later))
        ways = [here * (1 - share) + below * share for here, below in zip([*ways, 0.0], [0.0, *ways], strict=True)]
    passed = sum(then for then, _ in cases)
    change = math.fsum(mean(list(map(float, later))) - then for then, later in cases)
    return change, min(1.0, 2 * math.fsum(ways[: passed + 1]), 2 * math.fsum(ways[passed:]))


def _passes(answer: AnswerScore) -> bool:
    return answer.score >= FULL_SCORE - EQUAL


def _compare_ratio(pairs: Sequence[tuple[float, float]], *, both_ways: bool = True) -> str:
    """The medians before and now, if most of the cases have changed by more than RATIO in one direction."""
    if not pairs:
        return ""
    ways = 2 if both_ways else 1
    more = sum(now > RATIO * before for before, now in pairs)
    less = sum(before > RATIO * now for before, now in pairs) if both_ways else 0
    if ways * _tail(len(pairs), max(more, less)) > FALSE_ALARM:
        return ""
    medians = [sorted(values)[len(values) // 2] for values in zip(*pairs, strict=True)]
    return f"median of {medians[0]:.0f} -> {medians[1]:.0f}"
