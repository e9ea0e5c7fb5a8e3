"""Compares a provider's bill with our own counts, by day and model, and says what may explain each difference. Pure.

Our counts are the metering rows with tokens. What providers may bill besides is counted by kind (attempts.py):

- requests that are not of clients, and both parts of a continued answer, are added to what is expected;
- requests that failed may be billed or not, and their tokens are not known, like those of some trials;
- a reply that broke off, or had no count of the provider, is counted here, and its provider may count it otherwise.

So the tokens of a bill may differ by as many average requests as there are without a sure count. Money is judged by
what the config said that a token costs, to a tolerance: of each line, and of all together. It may differ in proportion
to the billed tokens. If the tokens are right and the money is not, the price of the provider is another one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from cadenza.core.attempts import CONTINUATION, CONTINUED, EVALUATION, TRIAL, WATCH, AttemptKey, AttemptSums
from cadenza.core.money import format_dollars
from cadenza.core.usage_report import day_name
from cadenza.parts.books.bill_file import BillCounts, DayModel

Result = Literal["agrees", "explained", "differs"]
TOLERANCE = 0.001  # of tokens: rounding in a bill
OWN_KINDS = {
    TRIAL: "trials by cadenza doctor",
    WATCH: "requests of watches, which release 0.1.0 had",
    EVALUATION: "requests of evaluations",
}


class Tolerance(msgspec.Struct, frozen=True):
    """How far the money of a bill may be off: a share of what is expected, and an amount besides, for rounding."""

    share: float = 0.005
    amount_nano: int = 10_000_000

    def covers(self, least_nano: int, most_nano: int, billed_nano: int) -> bool:
        slack_nano = most_nano * self.share + self.amount_nano
        return least_nano - slack_nano <= billed_nano <= most_nano + slack_nano


USUAL = Tolerance()
COMPARED = (
    *("day", "model", "requests", "billed_requests", "input_tokens", "billed_input_tokens"),
    *("output_tokens", "billed_output_tokens", "cost", "billed_cost", "result"),
)  # of what a line shows


class ModelCounts(msgspec.Struct, frozen=True):
    """Our own counts of a day and a model."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    unknown_costs: int = 0  # of requests whose cost is not known
    estimated: int = 0  # replies that were counted here
    broken: int = 0  # replies that broke off, or whose client disconnected


class ComparedDay(msgspec.Struct, frozen=True):
    """One line of the comparison."""

    place: DayModel
    ours: ModelCounts
    billed: BillCounts
    result: Result
    reasons: tuple[str, ...]
    expected_nano: tuple[int, int] | None = None  # the least and the most; None: the money is not judged

    def shown(self) -> dict[str, Any]:
        ours, billed = self.ours, self.billed
        return {
            "day": self.place.day,
            "model": self.place.model,
            "requests": ours.requests,
            "billed_requests": billed.requests,
            "input_tokens": ours.prompt_tokens,
            "billed_input_tokens": billed.input_tokens,
            "output_tokens": ours.completion_tokens,
            "billed_output_tokens": billed.output_tokens,
            "cost": None if ours.unknown_costs else format_dollars(ours.cost_nano),
            "billed_cost": None if billed.cost_nano is None else format_dollars(billed.cost_nano),
            "result": self.result,
            "reasons": "; ".join(self.reasons),
        }


class BillReport(msgspec.Struct, frozen=True):
    """A bill beside our counts: a line for each day and model, all lines together, and what they mean."""

    lines: list[ComparedDay]
    total: ComparedDay

    @classmethod
    def of(cls, lines: list[ComparedDay], tolerance: Tolerance) -> "BillReport":
        return cls(lines, add_up(lines, tolerance))

    def sentences(self) -> Iterator[str]:
        for line in self.lines:
            if line.result != "agrees":
                reasons = "; ".join(line.reasons) or "nothing is known that explains it"
                yield f"{line.place.day} {line.place.model} {line.result}: {reasons}."
        for reason in self.total.reasons:
            yield f"All together: {reason}."
        if any(line.billed.cost_nano is not None and line.ours.unknown_costs for line in self.lines):
            yield "Of some lines the cost is not judged: cost_input and cost_output of their routes are not known."
        if self.total.result == "differs":
            yield "A request around midnight may be billed on the other day: compare the days on both sides of it."


def compare(
    ours: Mapping[DayModel, ModelCounts],
    attempts: Mapping[AttemptKey, AttemptSums],
    bill: Mapping[DayModel, BillCounts],
    tolerance: Tolerance = USUAL,
) -> list[ComparedDay]:
    """A line for each day and model that either side has, in order. Attempts without a request are no line."""
    by_place = dict[DayModel, dict[str, AttemptSums]]()
    for key, sums in attempts.items():
        by_place.setdefault(DayModel(day_name(key.day), key.model), {})[key.kind] = sums
    has = next(iter(bill.values()), BillCounts())
    absent = BillCounts(*(None if value is None else 0 for value in msgspec.structs.astuple(has)))
    return [
        _compare_one(place, ours.get(place, ModelCounts()), bill.get(place, absent), by_place.get(place, {}), tolerance)
        for place in sorted({*ours, *bill})
    ]


def add_up(lines: Sequence[ComparedDay], tolerance: Tolerance = USUAL) -> ComparedDay:
    """All lines together. Differences that are small day by day may add up to one that is not.

    The money of lines with other tokens is left out: they differ anyway.
    """
    ours, billed = [line.ours for line in lines], BillCounts()
    for line in lines:
        billed = billed.plus(line.billed)
    columns = zip(*map(msgspec.structs.astuple, ours), strict=True)
    results = {line.result for line in lines}
    found: Result = "differs" if "differs" in results else "explained" if "explained" in results else "agrees"
    judged = [(*line.expected_nano, line.billed.cost_nano or 0) for line in lines if line.expected_nano]
    reasons = tuple[str, ...]()
    if judged:
        least_nano, most_nano, billed_nano = map(sum, zip(*judged, strict=True))
        if not tolerance.covers(least_nano, most_nano, billed_nano):
            found, reasons = "differs", (_name_change(least_nano, most_nano, billed_nano),)
    return ComparedDay(DayModel("total", ""), ModelCounts(*map(sum, columns)), billed, found, reasons)


def _compare_one(
    place: DayModel,
    ours: ModelCounts,
    billed: BillCounts,
    kinds: Mapping[str, AttemptSums],
    tolerance: Tolerance,
) -> ComparedDay:
    """The tokens are judged first. Money that is off although they are right is a matter of the price."""
    line, extra, unsure = _compare_counts(place, ours, billed, kinds)
    if billed.cost_nano is None or ours.unknown_costs or (extra.prompt_tokens and not ours.prompt_tokens):
        return line
    exact = (ours.cost_nano, ours.cost_nano)
    if line.result == "agrees" and tolerance.covers(*exact, billed.cost_nano):
        return msgspec.structs.replace(line, expected_nano=exact)
    if line.result == "differs":
        return line
    bounds = _expected_cost(ours, billed, extra, unsure)
    if tolerance.covers(*bounds, billed.cost_nano):
        reasons = line.reasons or tuple(_reasons(ours, {}))
        return msgspec.structs.replace(
            line, result="explained" if reasons else "agrees", reasons=reasons, expected_nano=bounds
        )
    reasons = (*line.reasons, _name_change(*bounds, billed.cost_nano))
    return msgspec.structs.replace(line, result="differs", reasons=reasons, expected_nano=bounds)


def _expected_cost(ours: ModelCounts, billed: BillCounts, extra: AttemptSums, unsure: int) -> tuple[int, int]:
    """The least and the most that the billed tokens may cost: our cost, or as much more or less as they are.

    Tokens that the bill does not have may be as many average requests more or less as are not sure.
    """
    slack = unsure / max(1, ours.requests)
    ratios = [1.0]
    for whole, more, found in (
        (ours.prompt_tokens, extra.prompt_tokens, billed.input_tokens),
        (ours.completion_tokens, extra.completion_tokens, billed.output_tokens),
    ):
        if whole and found is not None:
            ratios.append(found / whole)
        elif whole:
            ratios += [max(0.0, 1 + more / whole - slack), 1 + more / whole + slack]
    return round(ours.cost_nano * min(ratios)), round(ours.cost_nano * max(ratios))


def _name_change(least_nano: int, most_nano: int, billed_nano: int) -> str:
    """How far the money is from what the config says, if the tokens are right."""
    is_more = billed_nano > most_nano
    near_nano = most_nano if is_more else least_nano
    if not near_nano:
        return f"{format_dollars(billed_nano)} dollars are billed for what costs nothing by the config"
    percent = abs(100 * (billed_nano / near_nano - 1))
    return (
        f"the provider charges {percent:.1f}% {'more' if is_more else 'less'} than cost_input, cost_output and "
        f"cost_cached of its routes say: its price has {'risen' if is_more else 'fallen'}, or they are wrong"
    )


def _compare_counts(
    place: DayModel, ours: ModelCounts, billed: BillCounts, kinds: Mapping[str, AttemptSums]
) -> tuple[ComparedDay, AttemptSums, int]:
    """The requests and tokens of a line, what is billed besides ours, and of how many the tokens are not sure."""
    if _is_within(ours, billed, AttemptSums(), 0, 0):
        return ComparedDay(place, ours, billed, "agrees", ()), AttemptSums(), ours.estimated + ours.broken
    extra, uncounted = AttemptSums(), 0
    for kind in (*OWN_KINDS, CONTINUED, CONTINUATION):
        sums = kinds.get(kind, AttemptSums())
        extra = extra.plus(sums._replace(requests=0) if kind == CONTINUATION else sums)
        uncounted += sums.requests if not _has_tokens(sums) else 0
    failed = sum(sums.requests for kind, sums in kinds.items() if kind not in (*OWN_KINDS, CONTINUED, CONTINUATION))
    if billed.requests is not None:
        failed = max(0, min(failed, billed.requests - ours.requests - extra.requests))
    unsure = failed + uncounted + ours.estimated + ours.broken
    result: Result = "explained" if _is_within(ours, billed, extra, failed, unsure) else "differs"
    return ComparedDay(place, ours, billed, result, tuple(_reasons(ours, kinds))), extra, unsure


def _is_within(ours: ModelCounts, billed: BillCounts, extra: AttemptSums, failed: int, unsure: int) -> bool:
    """Whether a bill is what is expected, if some requests may have failed, and the tokens of some are not sure."""
    requests = ours.requests + extra.requests
    if billed.requests is not None and not requests <= billed.requests <= requests + failed:
        return False
    pairs = (
        (ours.prompt_tokens + extra.prompt_tokens, billed.input_tokens),
        (ours.completion_tokens + extra.completion_tokens, billed.output_tokens),
    )
    for expected, found in pairs:
        slack = expected * TOLERANCE + unsure * expected / max(1, ours.requests)
        if found is not None and abs(found - expected) > slack:
            return False
    return True


def _reasons(ours: ModelCounts, kinds: Mapping[str, AttemptSums]) -> Iterator[str]:
    """What may explain a difference."""
    for kind, what in OWN_KINDS.items():
        if sums := kinds.get(kind):
            yield f"{what}: {sums.requests} ({_tokens(sums)})"
    if sums := kinds.get(CONTINUED):
        yield f"streams that another route continued: {sums.requests} ({_tokens(sums)})"
    if sums := kinds.get(CONTINUATION):
        yield f"streams that were continued there, whose beginning is billed as input: {sums.requests}"
    failed = {kind: sums.requests for kind, sums in kinds.items() if kind not in (*OWN_KINDS, CONTINUED, CONTINUATION)}
    if failed:
        named = ", ".join(f"{count} {kind}" for kind, count in sorted(failed.items()))
        yield f"attempts that failed: {sum(failed.values())} ({named})"
    if ours.broken:
        yield f"replies that broke off or whose client disconnected: {ours.broken}"
    if ours.estimated:
        yield f"replies without a count of the provider, counted here: {ours.estimated}"


def _tokens(sums: AttemptSums) -> str:
    if not _has_tokens(sums):
        return "tokens not known"
    return f"{sums.prompt_tokens:,} tokens in, {sums.completion_tokens:,} out"


def _has_tokens(sums: AttemptSums) -> bool:
    return bool(sums.prompt_tokens or sums.completion_tokens)
