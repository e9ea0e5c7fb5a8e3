"""The gate: what a verdict must show before its candidate is promoted. Pure: numbers to sentences.

Without a limit on scores the candidate must not be worse: the interval of the difference must not lie wholly below
zero. The same holds for each tag, always. Wire conformance always counts too: a check with a worse result than the
incumbent's stops the candidate. Costs and times have limits even if the config sets none.
"""

import math
from collections.abc import Iterator

from cadenza.core.classes import GateLimits
from cadenza.parts.evaluation.verdict import CHECK_STATES, Verdict

COST_RATIO_MAX = 1.5  # unless the config says otherwise
P95_RATIO_MAX = 2.0
P95_MS_MIN = 200.0  # whole answers that are faster than this are not called slow, unless the config sets a limit


def find_shortfalls(verdict: Verdict, limits: GateLimits) -> list[str]:
    """What the candidate lacks, by how much: a sentence for each limit. Empty: it passes."""
    return [*_check_scores(verdict, limits), *_check_ratios(verdict, limits), *_check_conformance(verdict)]


def _check_scores(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    if not verdict.is_complete:
        yield "The evaluation was stopped before every case was asked: repeat its command to complete it."
    if limits.min_score is None and limits.max_losses is None and verdict.interval.high < 0:
        yield (
            f"It is worse than the incumbent by {-verdict.difference:.3f} in score "
            f"(between {-verdict.interval.high:.3f} and {-verdict.interval.low:.3f}), "
            f"with {verdict.losses} losses and {verdict.wins} wins."
        )
    score = verdict.candidate.score
    if limits.min_score is not None and score < limits.min_score:
        yield f"min_score: its score is {score:.3f} of {limits.min_score:.3f}: {limits.min_score - score:.3f} too low."
    if limits.max_losses is not None and verdict.losses > limits.max_losses:
        over = verdict.losses - limits.max_losses
        yield f"max_losses: it loses {verdict.losses} cases, and {limits.max_losses} are allowed: {over} too many."
    yield from _compare_tags(verdict)
    yield from _check_tags(verdict, limits)


def _compare_tags(verdict: Verdict) -> Iterator[str]:
    for tag in verdict.by_tag:
        if tag.is_worse:
            yield (
                f"It is worse at '{tag.tag}': {tag.incumbent:.3f} -> {tag.candidate:.3f} (difference {tag.interval}), "
                f"with {tag.losses} losses and {tag.wins} wins in {tag.cases} cases."
            )


def _check_tags(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    for name in limits.must_pass:
        tag = verdict.tag(name)
        if tag is None:
            known = ", ".join(one.tag for one in verdict.by_tag) or "none"
            yield f"must_pass: no case that was asked has the tag '{name}'; the tags are {known}."
            continue
        if lost := tag.only_incumbent_passes:
            passed = tag.incumbent_passes
            yield f"must_pass: of {passed} cases with the tag '{name}' that the incumbent passes, it fails {lost}."


def _check_ratios(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    unknown = (
        "the costs are not known: set cost_input and cost_output of both routes in the config, and evaluate again."
    )
    yield from _check_ratio(
        ("max_cost_ratio", "costs"), verdict.cost_ratio, limits.max_cost_ratio, COST_RATIO_MAX, unknown
    )
    is_fast = (verdict.candidate.whole_p95_ms or 0.0) < P95_MS_MIN
    usual, unknown = (
        math.inf if is_fast else P95_RATIO_MAX,
        "there are no times to compare, because a side answered nothing.",
    )
    yield from _check_ratio(
        ("max_p95_ratio", "takes (95th percentile)"), verdict.p95_ratio, limits.max_p95_ratio, usual, unknown
    )


def _check_ratio(
    words: tuple[str, str], found: float | None, limit: float | None, usual: float, unknown: str
) -> Iterator[str]:
    """A limit of the config wants a ratio that is known; the usual one only counts if it is."""
    name, verb = words
    most = usual if limit is None else limit
    if found is None and limit is not None:
        yield f"{name}: {unknown}"
    elif found is not None and found > most:
        yield (
            f"{name}: it {verb} {found:.2f} times as much as the incumbent, and {most:.2f} is allowed: "
            f"{found - most:.2f} above."
        )


def _check_conformance(verdict: Verdict) -> Iterator[str]:
    if not verdict.candidate.conformance:
        yield "Its wire conformance was not tried: evaluate it again."
    before = {check.name: check.state for check in verdict.incumbent.conformance}
    worse = [
        f"{check.name} ({before.get(check.name, 'not tried')} -> {check.state})"
        for check in verdict.candidate.conformance
        if CHECK_STATES.index(check.state) > CHECK_STATES.index(before.get(check.name, "warning"))
    ]
    if worse:
        yield f"Its wire conformance is worse than the incumbent's: {', '.join(worse)}."
