"""Months of the ledger: what the entries of a month add up to, and its close. A month is one of UTC.

An entry belongs to the month of its time, `created_at`. A month is closed in three steps:

1. It is *sealed*, by a row in `closed_months` and a trigger (store/month_end.py). From that commit on, the database
   dates a new entry at the end of the month or later, whatever the clock of its writer says. So what is written by a
   process whose clock is behind, and a charge that waited for the store, are in the first open month. Entries are
   append-only, so those of a sealed month are final. On Postgres the new trigger locks the table: it waits for the
   batches in flight, and later ones meet it.
2. Its entries are read without any lock: they are hashed in the order of their ids, and added to the balances with
   which the month before was closed.
3. It is *closed*: the row gets the sums and the hash, and neither it nor the balances can be changed.

A close that was interrupted is taken up by the next one. The hash of a month covers the hash of the closed month before
it, so one hash stands for the whole ledger up to then.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, select, text, update

from cadenza.core.formats import escape_formula
from cadenza.core.spans import Span
from cadenza.store.month_end import postgres_trigger, sqlite_trigger
from cadenza.store.schema import closed_months
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, Transaction

PAGE = 1000
NEVER_MS = 2**62
LOCK_S = 2.0  # Postgres ends a vacuum that is in the way after one second

_OF_MONTH = "entries.id >= :first AND entries.created_at >= :since AND entries.created_at < :end"
SUMS = Statement(
    text(f"""
    SELECT CASE WHEN entries.created_at < :start THEN 'before' ELSE COALESCE(entries.origin, entries.kind) END,
    COUNT(*), SUM(entries.amount_nano), SUM(entries.granted_nano)
    FROM entries WHERE {_OF_MONTH} GROUP BY 1""")  # noqa: S608 our own expressions
)
ACCOUNTS = Statement(
    text(f"""
    SELECT COUNT(DISTINCT entries.account_id) FROM entries WHERE {_OF_MONTH}
    AND entries.created_at >= :start""")  # noqa: S608 our own expression
)
BALANCES = Statement(
    text(f"""
    SELECT account_id, SUM(amount), SUM(granted) FROM (
        SELECT account_id, balance_nano AS amount, granted_nano AS granted FROM closed_balances WHERE month = :before
        UNION ALL
        SELECT entries.account_id, entries.amount_nano, entries.granted_nano FROM entries WHERE {_OF_MONTH}
    ) moves GROUP BY account_id ORDER BY account_id""")  # noqa: S608 our own expression
)
HASHED = Statement(
    text(f"""
    SELECT entries.id, entries.created_at, entries.account_id, entries.kind, entries.amount_nano, entries.granted_nano,
    entries.origin, entries.completion_id, entries.source, entries.debt_id, entries.note
    FROM entries WHERE {_OF_MONTH} ORDER BY entries.id LIMIT :page""")  # noqa: S608 our own expressions
)
OLDEST = Statement(text("SELECT MIN(created_at) FROM entries WHERE id >= :first AND created_at >= :since"))
FIRST_OPEN = Statement(text("SELECT MIN(id) FROM entries WHERE id >= :first AND id < :sealed AND created_at >= :end"))
SEAL = Statement(
    text("""
    INSERT INTO closed_months (month, starts_at, ends_at, sealed_at, first_open_id)
    SELECT CAST(:month AS TEXT), CAST(:start AS BIGINT), CAST(:end AS BIGINT), CAST(:now AS BIGINT),
    COALESCE(MAX(id), 0) + 1 FROM entries WHERE TRUE ON CONFLICT DO NOTHING""")
)
LATER = Statement(text("SELECT month FROM closed_months WHERE ends_at > :end"))
ADD_BALANCE = Statement(
    text("""
    INSERT INTO closed_balances (month, account_id, balance_nano, granted_nano)
    VALUES (:month, :account, :balance, :granted) ON CONFLICT DO NOTHING""")
)
EMAILS = Statement(text("SELECT id, email FROM accounts"))
OF_CLOSED = Statement(text("SELECT account_id, balance_nano, granted_nano FROM closed_balances WHERE month = :month"))


class OriginSum(msgspec.Struct, frozen=True):
    """What the entries of one origin add up to, and the granted part of it."""

    count: int = 0
    amount_nano: int = 0
    granted_nano: int = 0

    @property
    def paid_nano(self) -> int:
        return self.amount_nano - self.granted_nano

    def __add__(self, other: "OriginSum") -> "OriginSum":
        return OriginSum(
            self.count + other.count, self.amount_nano + other.amount_nano, self.granted_nano + other.granted_nano
        )


class MonthSums(msgspec.Struct, frozen=True):
    """What all entries of a month add up to."""

    opening: OriginSum
    by_origin: dict[str, OriginSum]  # 'charge' for charges
    accounts: int  # that have an entry in it

    @property
    def all(self) -> OriginSum:
        return sum(self.by_origin.values(), OriginSum())

    @property
    def closing(self) -> OriginSum:
        return self.opening + self.all

    @property
    def requests(self) -> int:
        """Those that were charged."""
        return self.by_origin.get("charge", OriginSum()).count


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

    @property
    def month_sums(self) -> MonthSums:
        by_origin = msgspec.json.decode(self.sums, type=dict[str, OriginSum])
        opening = OriginSum(0, self.opening_nano, self.opening_granted_nano)
        return MonthSums(opening, by_origin, self.accounts)


class AccountBalance(msgspec.Struct, frozen=True):
    """The balance of an account at the end of a month, and its granted part."""

    account_id: str
    balance_nano: int
    granted_nano: int

    @property
    def paid_nano(self) -> int:
        return self.balance_nano - self.granted_nano


COLUMNS = ClosedMonth.__struct_fields__
READ = Statement(select(*(closed_months.c[name] for name in COLUMNS)).order_by(closed_months.c.ends_at))
CLOSE = Statement(
    update(closed_months)
    .where(closed_months.c.month == bindparam("of"), closed_months.c.hash.is_(None))
    .values({name: bindparam(f"new_{name}") for name in COLUMNS[COLUMNS.index("closed_at") :]})
)


async def list_months(store: Store) -> list[ClosedMonth]:
    """The closed months, and one that is only sealed, oldest first."""
    return [ClosedMonth(*row) for row in await store.rows(READ, {})]


def newest(found: Sequence[ClosedMonth]) -> ClosedMonth | None:
    """The last month that is closed."""
    return month_before(found, NEVER_MS)


def month_before(found: Sequence[ClosedMonth], until_ms: int) -> ClosedMonth | None:
    """The newest closed month that ended by then."""
    return max((one for one in found if one.hash and one.ends_at <= until_ms), key=_end, default=None)


def _end(month: ClosedMonth) -> int:
    return month.ends_at


def _range(before: ClosedMonth | None, end_ms: int) -> dict[str, Any]:
    """The entries since the closed month before: all of them, also if months without any are between."""
    return {
        "first": before.first_open_id if before else 0,
        "since": before.ends_at if before else 0,
        "end": end_ms,
    }


async def oldest_open(store: Store, before: ClosedMonth | None) -> int | None:
    """The time of the oldest entry that is of no closed month."""
    values = _range(before, 0)
    [(at,)] = await store.report(OLDEST, {"first": values["first"], "since": values["since"]})
    return None if at is None else int(at)


async def sum_month(store: Store, span: Span, before: ClosedMonth | None) -> MonthSums:
    """What the entries of a span add up to, from the balances with which an earlier month was closed."""
    values = {**_range(before, span.end_ms), "start": span.start_ms}
    rows = await store.report(SUMS, values)
    [(accounts,)] = await store.report(ACCOUNTS, values)
    opening = OriginSum(0, before.closing_nano, before.closing_granted_nano) if before else OriginSum()
    sums = {name: OriginSum(*map(int, found)) for name, *found in rows}
    if earlier := sums.pop("before", None):
        opening = OriginSum(0, opening.amount_nano + earlier.amount_nano, opening.granted_nano + earlier.granted_nano)
    return MonthSums(opening, dict(sorted(sums.items())), int(accounts))


async def balances_at(store: Store, end_ms: int, before: ClosedMonth | None) -> list[AccountBalance]:
    """The balance of each account with entries, at the end of a month that is sealed."""
    values = {**_range(before, end_ms), "before": before.month if before else ""}
    rows = await store.report(BALANCES, values)
    return [AccountBalance(account_id, int(balance), int(granted)) for account_id, balance, granted in rows]


async def emails(store: Store) -> dict[str, str]:
    return {row[0]: row[1] for row in await store.report(EMAILS, {})}


async def closed_balances(store: Store, month: str) -> list[AccountBalance]:
    return [AccountBalance(*row) for row in await store.report(OF_CLOSED, {"month": month})]


class HashedEntry(msgspec.Struct, frozen=True, array_like=True):
    """What the hash of a month covers of an entry, as JSON.

    The source of an entry of a request is left out: it follows from the request. Text is as in a CSV file.
    """

    id: int
    created_at: int
    account_id: str
    kind: str
    amount_nano: int
    granted_nano: int
    origin: str | None
    completion_id: str | None
    source: str | None
    debt_id: int | None
    note: str

    def line(self) -> bytes:
        source = None if self.completion_id else escape_formula(self.source)
        values = msgspec.structs.replace(self, source=source, note=escape_formula(self.note))
        return msgspec.json.encode(values) + b"\n"


class MonthHash:
    """SHA-256 of the hash of the month before, the month, and its entries in the order of their ids."""

    def __init__(self, month: str, before: bytes) -> None:
        self._hash = hashlib.sha256(before + month.encode() + b"\n")
        self.entries = 0

    def add(self, entry: HashedEntry) -> None:
        self._hash.update(entry.line())
        self.entries += 1

    def digest(self) -> bytes:
        return self._hash.digest()


async def read_entries(store: Store, end_ms: int, before: ClosedMonth | None) -> AsyncIterator[HashedEntry]:
    """The entries of a sealed month. At most one page is in memory."""
    values = {**_range(before, end_ms), "page": PAGE}
    while rows := await store.report(HASHED, values):
        for row in rows:
            yield HashedEntry(*row)
        values["first"] = rows[-1][0] + 1


async def hash_month(store: Store, month: str, end_ms: int, before: ClosedMonth | None) -> MonthHash:
    found = MonthHash(month, (before and before.hash) or b"")
    async for entry in read_entries(store, end_ms, before):
        found.add(entry)
    return found


async def seal(store: Store, month: str, span: Span, now_ms: int) -> None:
    """From now on no entry can be dated in the month. A second seal changes nothing."""

    is_sqlite = store.path is not None
    trigger = sqlite_trigger(span.end_ms) if is_sqlite else postgres_trigger(span.end_ms)

    def work(tx: Transaction) -> None:
        for statement in trigger:
            tx.change(Statement(text(statement)), {})
        if tx.row(LATER, {"end": span.end_ms}):
            raise StoreRefused("The store refused to seal a month: a later one is sealed.")
        tx.change(SEAL, {"month": month, "start": span.start_ms, "end": span.end_ms, "now": now_ms})

    await store.transact(work, lock_s=LOCK_S)


async def compute(store: Store, sealed: ClosedMonth, before: ClosedMonth | None, now_ms: int) -> ClosedMonth:
    """The row with which a sealed month is closed."""
    sums = await sum_month(store, Span(before.ends_at if before else 0, sealed.ends_at), before)
    hashed = await hash_month(store, sealed.month, sealed.ends_at, before)
    first = before.first_open_id if before else 0
    [(open_id,)] = await store.report(
        FIRST_OPEN, {"first": first, "sealed": sealed.first_open_id, "end": sealed.ends_at}
    )
    assert hashed.entries == sums.all.count, "the entries of a sealed month are final"
    return msgspec.structs.replace(
        sealed,
        closed_at=now_ms,
        first_open_id=sealed.first_open_id if open_id is None else int(open_id),
        accounts=sums.accounts,
        entries=hashed.entries,
        requests=sums.requests,
        opening_nano=sums.opening.amount_nano,
        opening_granted_nano=sums.opening.granted_nano,
        closing_nano=sums.closing.amount_nano,
        closing_granted_nano=sums.closing.granted_nano,
        sums=msgspec.json.encode(sums.by_origin).decode(),
        hash=hashed.digest(),
    )


async def add_balances(store: Store, month: str, balances: Sequence[AccountBalance]) -> None:
    rows = [
        {"month": month, "account": one.account_id, "balance": one.balance_nano, "granted": one.granted_nano}
        for one in balances
    ]
    for start in range(0, len(rows), PAGE):
        page = rows[start : start + PAGE]
        await store.transact(lambda tx, page=page: tx.change_each(ADD_BALANCE, page))  # type: ignore[misc]


def close(tx: Transaction, closed: ClosedMonth) -> None:
    """Write the sums and the hash of a sealed month, which is closed from then on."""
    values = {f"new_{name}": value for name, value in msgspec.structs.asdict(closed).items()}
    if tx.change(CLOSE, {**values, "of": closed.month}) != 1:
        raise StoreRefused("The store refused to close a month: it is closed already.")
