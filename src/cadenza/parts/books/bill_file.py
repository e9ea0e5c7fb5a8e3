"""Reads the bill of a provider, a CSV file: its counts by day and model. Columns of some providers are known. Pure."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import chain
from typing import NamedTuple

import msgspec

from cadenza.core.money import DECIMALS, parse_dollars

DATED = re.compile(r"[-@]20[0-9]{2}-?[0-9]{2}-?[0-9]{2}$")
UNIX_SECONDS = re.compile(r"[0-9]{9,11}(\.0*)?")
THOUSANDS = re.compile(r"-?[0-9]{1,3}(\.[0-9]{3})+")
NUMBER = re.compile(r"\$?(-?[0-9][0-9,]{0,30})(\.[0-9]{1,60})?")
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


class BillCounts(msgspec.Struct, frozen=True):
    """What a bill says of a day and a model. None: it has no such column."""

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nano: int | None = None

    def plus(self, other: "BillCounts") -> "BillCounts":
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return BillCounts(*(b if a is None else a if b is None else a + b for a, b in zip(mine, others, strict=True)))


def read_bill(lines: Iterable[str]) -> dict[DayModel, BillCounts]:
    """The counts of a CSV file. A ValueError names the column or the line that cannot be read.

    Columns are parted by commas, or by semicolons or tabs: then a comma in a number is its decimal point.
    """
    rest = iter(lines)
    header = next(rest, "")
    delimiter = max(",;\t", key=header.count)
    table = csv.DictReader(chain([header], rest), delimiter=delimiter)
    names = {_normal(name): name for name in table.fieldnames or () if name}
    day_column, model_column = _column(names, "day", DAY_NAMES), _column(names, "model", MODEL_NAMES)
    readers = _counters(names)
    bill = dict[DayModel, BillCounts]()
    for number, row in enumerate(table, 2):
        if not (row[day_column] or "").strip():
            continue
        try:
            place = DayModel(_day(row[day_column]), (row[model_column] or "").strip())
            counts = {
                field: sum(_number(field, row[name], delimiter) for name in columns)
                for field, columns in readers.items()
            }
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
        raise ValueError(
            f"{text[:40]!r} is not a day: write it like 2026-10-31, or in Unix seconds. Remove a line of sums."
        ) from None


def _number(field: str, written: str | None, delimiter: str) -> int:
    """A count, or nano-dollars. An empty count is zero; a bill may have more decimals than a nano-dollar."""
    text = (written or "").strip()
    if not text and field == "cost_nano":
        raise ValueError("its cost is empty: write 0 if nothing was billed.")
    if not text:
        return 0
    if delimiter != "," and ("," in text or (field != "cost_nano" and THOUSANDS.fullmatch(text))):
        text = text.replace(".", "").replace(",", ".")
    found = NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a number.")
    whole, decimals = found[1].replace(",", ""), found[2] or ""
    if field != "cost_nano":
        if decimals.strip(".0"):
            raise ValueError(f"{text[:40]!r} is not a whole number.")
        return int(whole)
    sign = -1 if whole.startswith("-") else 1
    return sign * parse_dollars(whole.lstrip("-") + decimals[: DECIMALS + 1])
