"""What requests add up to in a span of time: their sums by day (`usage_days`), exact to the millisecond.

The sums have whole days. Of the day in which a span begins, the metering rows from then on are added. The day in which
it ends is counted whole, less the metering rows from its end on: usually that is now, and there are none. So a report
reads a row for each day, key, class and model, and metering rows of at most two days. A day whose metering rows were
removed counts where it starts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, TextClause, bindparam, literal_column, select, text, union_all

from cadenza.core.records import SEARCH
from cadenza.core.spans import DAY_MS, Span
from cadenza.store.schema import usage, usage_days
from cadenza.store.statements import total

Shown = Callable[[ColumnElement[Any]], ColumnElement[Any]]

KEY = tuple(usage_days.primary_key.c.keys())
SUMS = {  # what a metering row adds to each column: ledger/day_sums.py has the same in Python
    "requests": "1",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "cost_nano": "cost_nano",
    "provider_cost_nano": "COALESCE(provider_cost_nano, 0)",
    "failed_requests": "CASE WHEN status >= 500 THEN 1 ELSE 0 END",
    "counted_requests": "CASE WHEN prompt_tokens + completion_tokens > 0 THEN 1 ELSE 0 END",
    "broken_requests": "CASE WHEN status <> 200 AND prompt_tokens + completion_tokens > 0 THEN 1 ELSE 0 END",
    "estimated_requests": "CASE WHEN estimated AND prompt_tokens + completion_tokens > 0 THEN 1 ELSE 0 END",
    "uncosted_requests": (
        "CASE WHEN provider_cost_nano IS NULL AND prompt_tokens + completion_tokens > 0 THEN 1 ELSE 0 END"
    ),
    "uncosted_nano": "CASE WHEN provider_cost_nano IS NULL THEN cost_nano ELSE 0 END",
}
# a search is charged as one prompt token at the price of a search: it is left out of the prompt tokens that are shown
PROMPT_TOKENS = f"CASE WHEN class_id = '{SEARCH}' THEN 0 ELSE prompt_tokens END"
DERIVED = {"shown_prompt_tokens": PROMPT_TOKENS}
OF_REQUEST = {name: f"started_at / {DAY_MS}" if name == "day" else name for name in KEY}


def add_up(groups: Sequence[str], sums: Sequence[str], *columns: str, shown: Shown | None = None) -> Select[Any]:
    """The sums of a span by these groups, in their order, where each of `columns` is what its parameter says.

    A group whose first sum is zero is left out; without groups, it is one row. `shown` is what is shown of a group.
    Each part of the span is summed up on its own. Without an account, metering rows are found by their ids, which begin
    with the time.
    """
    names = (*groups, *sums)
    parts = [
        _part(
            usage_days,
            {name: DERIVED.get(name, name) for name in names},
            len(groups),
            columns,
            _between("day", "start_day", "end_day"),
        ),
        _part(usage, _of_request(names, ""), len(groups), columns, _to_end_of_day("start", columns)),
        _part(usage, _of_request(names, "-"), len(groups), columns, _to_end_of_day("end", columns)),
    ]
    found = union_all(*parts).subquery("sums").c
    first, *_ = totals = [total(found[name]).label(name) for name in sums]
    query = select(*((shown(found[name]) if shown else found[name]).label(f"group_{name}") for name in groups), *totals)
    places = _places(len(groups))
    return query.group_by(*places).order_by(*places).having(first > literal_column("0")) if groups else query


def _part(table: Table, names: Mapping[str, str], groups: int, columns: Sequence[str], where: str) -> Select[Any]:
    found: list[ColumnElement[Any]] = [literal_column(sql).label(name) for name, sql in [*names.items()][:groups]]
    found += [total(literal_column(sql)).label(name) for name, sql in [*names.items()][groups:]]
    equal = [table.c[name] == bindparam(name.removesuffix("_id")) for name in columns]
    return select(*found).select_from(table).where(*equal, text(where)).group_by(*_places(groups))


def _of_request(names: Sequence[str], sign: str) -> dict[str, str]:
    return {
        name: OF_REQUEST[name] if name in OF_REQUEST else f"{sign}({SUMS.get(name) or DERIVED[name]})" for name in names
    }


def _to_end_of_day(place: str, columns: Sequence[str]) -> str:
    """The requests from a place of the span to the end of its day."""
    by_id = "" if "account_id" in columns else f"{_between('completion_id', f'{place}_id', f'{place}_id_end')} AND "
    return by_id + _between("started_at", place, f"{place}_day_ms")


def _between(column: str, first: str, end: str) -> str:
    return f"{column} >= :{first} AND {column} < :{end}"


def _places(count: int) -> list[TextClause]:
    return [text(str(number)) for number in range(1, count + 1)]


def span_values(span: Span, **columns: str) -> dict[str, Any]:
    """The parameters of `add_up`."""
    values: dict[str, Any] = {**columns}
    for place, at_ms in (("start", span.start_ms), ("end", span.end_ms)):
        day = -(-at_ms // DAY_MS)
        values |= {place: at_ms, f"{place}_day": day, f"{place}_day_ms": day * DAY_MS}
        values |= {f"{place}_id": first_id(at_ms), f"{place}_id_end": first_id(day * DAY_MS)}
    return values


def first_id(at_ms: int) -> str:
    """The lowest completion id of a time: ids sort by time."""
    return f"chatcmpl-{at_ms:011x}"
