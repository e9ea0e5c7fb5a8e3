"""Metering rows of both kinds: of requests (`usage`) and of days that were rolled up (`usage_days`).

Their columns have the same names, so a report is one query that is made for each. Each table is summed up on its own,
and the sums are added: a report over requests costs what it did before there were days. A day counts where it starts.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, bindparam, literal_column, select, text, union_all
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from cadenza.store.schema import usage, usage_days
from cadenza.store.statements import total


class Metered(NamedTuple):
    """A table of metering rows, and how many requests a row of it stands for."""

    c: ReadOnlyColumnCollection[str, Any]
    requests: ColumnElement[int]

    @property
    def in_span(self) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return self.c.started_at >= bindparam("start"), self.c.started_at < bindparam("end")

    @property
    def of_span(self) -> tuple[ColumnElement[bool], ...]:
        return (self.c.account_id == bindparam("account"), *self.in_span)


REQUESTS = Metered(usage.c, literal_column("1"))
DAYS = Metered(usage_days.c, usage_days.c.requests)


def add_up(
    groups: Callable[[Metered], Sequence[ColumnElement[Any]]],
    sums: Callable[[Metered], Sequence[ColumnElement[Any]]],
    where: Callable[[Metered], Sequence[ColumnElement[bool]]],
) -> Select[tuple[Any, ...]]:
    """The sums of both tables by these groups, in the order of the groups. Without groups, it is one row."""
    found = union_all(*(_sum_up(groups(one), sums(one), where(one)) for one in (REQUESTS, DAYS))).subquery("metered")
    count = len(groups(REQUESTS))
    columns = [*found.c]
    named, summed = columns[:count], columns[count:]
    query = select(*named, *(total(column).label(column.name) for column in summed))
    return query.group_by(*named).order_by(*named) if named else query


def _sum_up(
    groups: Sequence[ColumnElement[Any]], sums: Sequence[ColumnElement[Any]], where: Sequence[ColumnElement[bool]]
) -> Select[tuple[Any, ...]]:
    named = [column.label(f"group_{number}") for number, column in enumerate(groups)]
    summed = [total(column).label(f"sum_{number}") for number, column in enumerate(sums)]
    places = [text(str(number)) for number in range(1, len(named) + 1)]
    return select(*named, *summed).where(*where).group_by(*places)
