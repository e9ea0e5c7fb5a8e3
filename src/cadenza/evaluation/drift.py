"""Whether a model behaves as it did: a watch against the reference, case by case. Pure.

Score, tokens and the time to the first token are compared by exact sign tests over the cases that both have answered.
If nothing has changed, a test is positive with a probability of at most `FALSE_ALARM`, for any distribution of the
scores: a case that differs is then as likely to be better as worse. At one watch a day that
is at most one false alarm of a measure in three years. Cases without an answer say nothing about the model.

    measure      what counts as drift
    score        more cases are worse than better, or better than worse, than chance explains
    tokens       in most cases the answer is more than twice as long, or less than half
    latency      in most cases the first token takes more than twice as long, and it did in the watch before too
    conformance  a check of the wire has another result, and has it again when it is repeated
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from cadenza.evaluation.statistics import mean
from cadenza.evaluation.verdict import EQUAL, ConformanceCheck, SideSummary
from cadenza.store.tables.verdicts import AnswerScore

FALSE_ALARM = 0.001  # of one measure in one watch
RATIO = 2.0  # changes of tokens and times below it do not count
TOKENS_MIN = 8  # of an answer: the length of shorter ones says little
LATENCY_MS_MIN = 20.0  # faster than that counts as this fast

Measure = Literal["score", "tokens", "latency", "conformance"]
MEASURES: tuple[Measure, ...] = ("score", "tokens", "latency", "conformance")


class Drift(msgspec.Struct, frozen=True):
    """A measure that has changed, and how, in numbers and names of checks."""

    measure: Measure
    detail: str


class WatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch found. `suspected` is a measure whose drift is confirmed if the next watch finds it too."""

    summary: SideSummary
    reference_id: str | None = None  # None: this watch is the reference
    drifts: tuple[Drift, ...] = ()
    suspected: tuple[Measure, ...] = ()


def sign_test(more: int, fewer: int) -> float:
    """The probability that chance puts at least this many of the cases that differ on one side: two-sided."""
    return min(1.0, 2 * _tail(more + fewer, max(more, fewer)))


def _tail(count: int, at_least: int) -> float:
    """The probability of at least this many heads in `count` tosses of a coin."""
    ways: int = sum(math.comb(count, one) for one in range(at_least, count + 1))
    return ways / (1 << count)


def find_drift(
    reference: Sequence[AnswerScore], scores: Sequence[AnswerScore], suspected: Sequence[Measure] = ()
) -> tuple[list[Drift], list[Measure]]:
    """What has changed since the reference, and what is suspected. `suspected` is what the watch before suspected."""
    before, now = _by_case(reference), _by_case(scores)
    pairs = [(before[number], now[number]) for number in sorted(before.keys() & now.keys())]
    longer = _compare_ratio([(_tokens(old), _tokens(new)) for old, new in pairs])
    slower = _compare_ratio([(_first_ms(old), _first_ms(new)) for old, new in pairs], both_ways=False)
    found = [_compare_scores([(old.score, new.score) for old, new in pairs])]
    if longer:
        found.append(Drift("tokens", f"{longer} tokens"))
    if slower and "latency" in suspected:
        found.append(Drift("latency", f"{slower} ms to the first token"))
    return [one for one in found if one], ["latency"] if slower else []


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


def _compare_scores(pairs: Sequence[tuple[float, float]]) -> Drift | None:
    better = sum(now > before + EQUAL for before, now in pairs)
    worse = sum(now < before - EQUAL for before, now in pairs)
    chance = sign_test(worse, better)
    if chance > FALSE_ALARM:
        return None
    means = mean([before for before, _ in pairs]), mean([now for _, now in pairs])
    detail = f"{means[0]:.3f} -> {means[1]:.3f}; of {len(pairs)} cases {worse} are worse and {better} better"
    return Drift("score", f"{detail}, by chance with a probability of {chance:.1g}")


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
