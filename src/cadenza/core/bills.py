"""Compares a provider's bill with our own counts, by day and model, and says what may explain each difference. Pure.

Our counts are the metering rows with tokens. What providers may bill besides is counted by kind (attempts.py):

- requests that are not of clients, and both parts of a continued answer, are added to what is expected;
- requests that failed may be billed or not, and their tokens are not known, like those of some trials;
- a reply that broke off, or had no count of the provider, is counted here, and its provider may count it otherwise.

So the tokens of a bill may differ by as many average requests as there are without a sure count.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from cadenza.core.attempts import CONTINUATION, CONTINUED, EVALUATION, TRIAL, WATCH, AttemptKey, AttemptSums
from cadenza.core.money import DECIMALS, format_dollars, parse_dollars
from cadenza.core.usage_report import day_name

Result = Literal["agrees", "explained", "differs"]
TOLERANCE = 0.001  # of tokens: rounding in a bill
OWN_KINDS = {TRIAL: "trials by cadenza doctor", WATCH: "requests of watches", EVALUATION: "requests of evaluations"}
DATED = re.compile(r"[-@]20[0-9]{2}-?[0-9]{2}-?[0-9]{2}$")
UNIX_SECONDS = re.compile(r"[0-9]{9,11}(\.0*)?")
NUMBER = re.compile(r"\$?(-?[0-9][0-9,]*)(\.[0-9]+)?")
# The names of columns, in the order in which they are looked for. Upper case and spaces do not matter.
DAY_NAMES = ("day", "date", "usage_date_utc", "utc_date", "usage_date", "start_time_iso", "start_time", "timestamp")
MODEL_NAMES = ("model", "model_version", "model_name", "model_id", "slug")
REQUEST_NAMES = ("requests", "num_model_requests", "num_requests", "request_count", "number_of_requests")
INPUT_NAMES = ("input_tokens", "prompt_tokens")
INPUT_PARTS = (  # of a bill that has no sum of them
    "usage_input_tokens_no_cache",
    "usage_input_tokens_cache_write_5m",
    "usage_input_tokens_cache_write_1h",
    "usage_input_tokens_cache_read",
)
OUTPUT_NAMES = ("output_tokens", "completion_tokens", "usage_output_tokens")
COST_NAMES = ("cost", "cost_usd", "amount_usd", "amount_value", "usage", "amount")


class DayModel(NamedTuple):
    """What both sides are compared by. A day is written like 2026-10-31, in UTC."""

    day: str
    model: str


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


class BillCounts(msgspec.Struct, frozen=True):
    """What a bill says of a day and a model. None: it has no such column."""

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nano: int | None = None

    def plus(self, other: "BillCounts") -> "BillCounts":
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return BillCounts(*(b if a is None else a if b is None else a + b for a, b in zip(mine, others, strict=True)))


class ComparedDay(msgspec.Struct, frozen=True):
    """One line of the comparison."""

    place: DayModel
    ours: ModelCounts
    billed: BillCounts
    result: Result
    reasons: tuple[str, ...]

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


def read_bill(lines: Iterable[str]) -> dict[DayModel, BillCounts]:
    """The counts of a CSV file. A ValueError names the column or the line that cannot be read."""
    table = csv.DictReader(lines)
    names = {_normal(name): name for name in table.fieldnames or () if name}
    day_column, model_column = _column(names, "day", DAY_NAMES), _column(names, "model", MODEL_NAMES)
    readers = _counters(names)
    bill = dict[DayModel, BillCounts]()
    for number, row in enumerate(table, 2):
        if not (row[day_column] or "").strip():
            continue
        try:
            place = DayModel(_day(row[day_column]), (row[model_column] or "").strip())
            counts = {field: sum(_number(field, row[name]) for name in columns) for field, columns in readers.items()}
        except ValueError as error:
            raise ValueError(f"line {number} of the bill: {error}") from None
        bill[place] = bill.get(place, BillCounts()).plus(BillCounts(**counts))
    if not bill:
        raise ValueError("the bill has no lines below its header.")
    return bill


def match_models(bill: Mapping[DayModel, BillCounts], models: Iterable[str]) -> dict[DayModel, BillCounts]:
    """The bill with our names of models: a name is one of ours if only its case, or a date at its end, is different."""
    known = {model.lower(): model for model in models}
    matched = dict[DayModel, BillCounts]()
    for (day, model), counts in bill.items():
        name = known.get(model.lower()) or known.get(DATED.sub("", model).lower()) or model
        place = DayModel(day, name)
        matched[place] = matched.get(place, BillCounts()).plus(counts)
    return matched


def compare(
    ours: Mapping[DayModel, ModelCounts],
    attempts: Mapping[AttemptKey, AttemptSums],
    bill: Mapping[DayModel, BillCounts],
) -> list[ComparedDay]:
    """A line for each day and model that either side has, in order. Attempts without a request are no line."""
    by_place = dict[DayModel, dict[str, AttemptSums]]()
    for key, sums in attempts.items():
        by_place.setdefault(DayModel(day_name(key.day), key.model), {})[key.kind] = sums
    has = next(iter(bill.values()), BillCounts())
    absent = BillCounts(*(None if value is None else 0 for value in msgspec.structs.astuple(has)))
    return [
        _compare_one(place, ours.get(place, ModelCounts()), bill.get(place, absent), by_place.get(place, {}))
        for place in sorted({*ours, *bill})
    ]


def _compare_one(
    place: DayModel, ours: ModelCounts, billed: BillCounts, kinds: Mapping[str, AttemptSums]
) -> ComparedDay:
    if _is_within(ours, billed, AttemptSums(), 0, 0):
        return ComparedDay(place, ours, billed, "agrees", ())
    extra, uncounted = AttemptSums(), 0
    for kind in (*OWN_KINDS, CONTINUED, CONTINUATION):
        sums = kinds.get(kind, AttemptSums())
        extra = extra.plus(sums._replace(requests=0) if kind == CONTINUATION else sums)
        uncounted += sums.requests if not _has_tokens(sums) else 0
    failed = sum(sums.requests for kind, sums in kinds.items() if kind not in (*OWN_KINDS, CONTINUED, CONTINUATION))
    unsure = failed + uncounted + ours.estimated + ours.broken
    is_explained = _is_within(ours, billed, extra, failed, unsure)
    return ComparedDay(place, ours, billed, "explained" if is_explained else "differs", tuple(_reasons(ours, kinds)))


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


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.strip("\ufeff \t").lower()).strip("_")


def _column(names: Mapping[str, str], what: str, wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return names[name]
    found = ", ".join(names.values()) or "none"
    raise ValueError(f"the bill has no column for the {what}: name one {wanted[0]}. Its columns are {found}.")


def _counters(names: Mapping[str, str]) -> dict[str, list[str]]:
    """The columns that make up each counter."""
    found = {
        "requests": [names[name] for name in REQUEST_NAMES if name in names][:1],
        "input_tokens": [names[name] for name in INPUT_NAMES if name in names][:1]
        or [names[name] for name in INPUT_PARTS if name in names],
        "output_tokens": [names[name] for name in OUTPUT_NAMES if name in names][:1],
        "cost_nano": [names[name] for name in COST_NAMES if name in names][:1],
    }
    counters = {field: columns for field, columns in found.items() if columns}
    if not counters.keys() - {"cost_nano"}:
        raise ValueError(
            "the bill has no counts: give it a column requests, input_tokens or output_tokens. "
            f"Its columns are {', '.join(names.values())}."
        )
    return counters


def _day(written: str) -> str:
    text = written.strip()
    if UNIX_SECONDS.fullmatch(text):
        return datetime.fromtimestamp(float(text), UTC).date().isoformat()
    try:
        return date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a day: write it like 2026-10-31, or in Unix seconds.") from None


def _number(field: str, written: str | None) -> int:
    """A count, or nano-dollars. An empty cell is zero; a bill may have more decimals than a nano-dollar."""
    text = (written or "").strip()
    if not text:
        return 0
    found = NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a number.")
    whole, decimals = found[1].replace(",", ""), found[2] or ""
    if field != "cost_nano":
        return int(whole)
    sign = -1 if whole.startswith("-") else 1
    return sign * parse_dollars(whole.lstrip("-") + decimals[: DECIMALS + 1])
