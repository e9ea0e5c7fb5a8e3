"""The closed months of the ledger: entries of them are final, and what was checked need not be read again.

An entry belongs to the month (UTC) of its time, `created_at`. The part `books` closes months; rows of `closed_months`
hold also where it is left out, and so does the trigger that dates a new entry after them (store/month_end.py).
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import select

from cadenza.core.spans import Span
from cadenza.store.schema import closed_months
from cadenza.store.statements import Statement
from cadenza.store.store import Store

NEVER_MS = 2**62


class ClosedMonth(msgspec.Struct, frozen=True):
    """A row of `closed_months`. A month that is sealed and not closed has no hash."""

    month: str
    starts_at: int
    ends_at: int
    sealed_at: int
    closed_at: int | None
    first_open_id: int
    accounts: int
    entries: int
    requests: int
    opening_nano: int
    opening_granted_nano: int
    closing_nano: int
    closing_granted_nano: int
    sums: str
    hash: bytes | None


COLUMNS = ClosedMonth.__struct_fields__
READ = Statement(select(*(closed_months.c[name] for name in COLUMNS)).order_by(closed_months.c.ends_at))


async def list_months(store: Store) -> list[ClosedMonth]:
    """The closed months, and one that is only sealed, oldest first."""
    return [ClosedMonth(*row) for row in await store.rows(READ, {})]


def newest(months: Sequence[ClosedMonth]) -> ClosedMonth | None:
    """The last month that is closed."""
    return month_before(months, NEVER_MS)


def month_before(months: Sequence[ClosedMonth], until_ms: int) -> ClosedMonth | None:
    """The newest closed month that ended by then."""
    return max((month for month in months if month.hash and month.ends_at <= until_ms), key=_end, default=None)


def _end(month: ClosedMonth) -> int:
    return month.ends_at


async def find_closed_span(store: Store, span: Span) -> ClosedMonth | None:
    """The closed month that is this span."""
    ends = span.start_ms, span.end_ms
    return next(
        (month for month in await list_months(store) if month.hash and (month.starts_at, month.ends_at) == ends), None
    )
