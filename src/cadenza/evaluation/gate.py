"""The gate: what a verdict must show before its candidate is promoted. Pure: numbers to sentences.

Without a limit on scores the candidate must not be worse: the interval of the difference must not lie wholly below
zero. Wire conformance always counts: a fault that the incumbent does not have stops the candidate.
"""

from collections.abc import Iterator

from cadenza.core.classes import GateLimits
from cadenza.evaluation.verdict import Verdict


def find_shortfalls(verdict: Verdict, limits: GateLimits) -> list[str]:
    """What the candidate lacks, by how much: a sentence for each limit. Empty: it passes."""
    return [*_check_scores(verdict, limits), *_check_ratios(verdict, limits), *_check_conformance(verdict)]


def _check_scores(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    if not verdict.is_complete:
        yield "The evaluation was stopped before every case was asked: repeat its command to complete it."
    if verdict.skipped:
        cases = "case needs" if verdict.skipped == 1 else "cases need"
        yield f"{verdict.skipped} {cases} a judge and had none: evaluate again with --judge CLASS."
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
    yield from _check_tags(verdict, limits)


def _check_tags(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    for name in limits.must_pass:
        tag = verdict.tag(name)
        if tag is None:
            known = ", ".join(one.tag for one in verdict.by_tag) or "none"
            yield f"must_pass: no case that was asked has the tag '{name}'; the tags are {known}."
        elif tag.candidate_passes < tag.cases:
            failed = tag.cases - tag.candidate_passes
            yield f"must_pass: of {tag.cases} cases with the tag '{name}', it fails {failed}."


def _check_ratios(verdict: Verdict, limits: GateLimits) -> Iterator[str]:
    if limits.max_cost_ratio is not None:
        if verdict.cost_ratio is None:
            yield (
                "max_cost_ratio: the costs are not known: set cost_input and cost_output of both routes in the config, "
                "and evaluate again."
            )
        elif verdict.cost_ratio > limits.max_cost_ratio:
            yield _above("max_cost_ratio", "costs", verdict.cost_ratio, limits.max_cost_ratio)
    if limits.max_p95_ratio is not None:
        if verdict.p95_ratio is None:
            yield "max_p95_ratio: there are no times to compare, because a side answered nothing."
        elif verdict.p95_ratio > limits.max_p95_ratio:
            yield _above("max_p95_ratio", "takes (95th percentile)", verdict.p95_ratio, limits.max_p95_ratio)


def _above(name: str, verb: str, found: float, limit: float) -> str:
    over = found - limit
    return (
        f"{name}: it {verb} {found:.2f} times as much as the incumbent, and {limit:.2f} is allowed: {over:.2f} above."
    )


def _check_conformance(verdict: Verdict) -> Iterator[str]:
    if not verdict.candidate.conformance:
        yield "Its wire conformance was not tried: evaluate it again."
    known = {check.name for check in verdict.incumbent.conformance if check.state == "fault"}
    faults = [check.name for check in verdict.candidate.conformance if check.state == "fault"]
    if faults := [name for name in faults if name not in known]:
        noun = "fault" if len(faults) == 1 else "faults"
        yield f"Its wire conformance has {len(faults)} {noun} that the incumbent does not have: {', '.join(faults)}."
