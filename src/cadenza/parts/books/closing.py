"""The close of a month: nothing in it can change afterwards.

A month is closed in three steps:

1. It is *sealed*, by a row in `closed_months` and a trigger (store/month_end.py). From that commit on, the database
   dates a new entry at the end of the month or later, whatever the clock of its writer says. So what is written by a
   process whose clock is behind, and a charge that waited for the store, are in the first open month. Entries are
   append-only, so those of a sealed month are final. On Postgres the new trigger locks the table: it waits for the
   batches in flight, and later ones meet it.
2. Its entries are read without any lock: they are hashed in the order of their ids, and added to the balances with
   which the month before was closed.
3. It is *closed*: the row gets the sums and the hash, and neither it nor the balances can be changed.

A month can be closed when it is over, every earlier month with entries is closed, and the ledger check finds nothing.
A close that was interrupted is taken up by the next one. The hash of a month covers the hash of the closed month before
it, so one hash stands for the whole ledger up to then.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import bindparam, text, update

from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.records import Operator
from cadenza.core.spans import Span, month_span
from cadenza.ledger import check, months
from cadenza.ledger.months import COLUMNS, ClosedMonth
from cadenza.parts.books.hashes import PAGE, hash_month
from cadenza.parts.books.sums import AccountBalance, balances_at, entries_after, month_of, sum_month
from cadenza.store.month_end import postgres_trigger, sqlite_trigger
from cadenza.store.schema import closed_months
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

GRACE_MS = 10 * 60 * 1000  # for the charges of requests that end at midnight
LOCK_S = 2.0  # Postgres ends a vacuum that is in the way after one second
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
CLOSE = Statement(
    update(closed_months)
    .where(closed_months.c.month == bindparam("of"), closed_months.c.hash.is_(None))
    .values({name: bindparam(f"new_{name}") for name in COLUMNS[COLUMNS.index("closed_at") :]})
)


async def oldest_open(store: Store, before: ClosedMonth | None) -> int | None:
    """The time of the oldest entry that is of no closed month."""
    values = entries_after(before, 0)
    [(at,)] = await store.report(OLDEST, {"first": values["first"], "since": values["since"]})
    return None if at is None else int(at)


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


def end(tx: Transaction, closed: ClosedMonth) -> None:
    """Write the sums and the hash of a sealed month, which is closed from then on."""
    values = {f"new_{name}": value for name, value in msgspec.structs.asdict(closed).items()}
    if tx.change(CLOSE, {**values, "of": closed.month}) != 1:
        raise StoreRefused("The store refused to close a month: it is closed already.")


async def close_month(store: Store, month: str, by: Operator, now_ms: int) -> ClosedMonth:
    span = month_span(month)
    found = await months.list_months(store)
    sealed = next((one for one in found if one.month == month), None)
    before = months.month_before(found, span.end_ms)
    if sealed and sealed.hash:
        raise ControlError(f"The month {month} is closed already, with the hash {sealed.hash.hex()}.")
    if now_ms < span.end_ms + GRACE_MS:
        raise ControlError(f"The month {month} can be closed after {rfc3339(span.end_ms + GRACE_MS)}.")
    if any(one.ends_at > span.end_ms for one in found):
        raise ControlError(f"A later month than {month} is closed: {month} has no entries that could be closed.")
    oldest_ms = await oldest_open(store, before)
    if oldest_ms is not None and oldest_ms < span.start_ms:
        raise ControlError(f"Close {month_of(oldest_ms)} first: it is before {month}, and has entries.")
    if sealed is None:
        if findings := await check.find_violations(store, before):
            raise ControlError(
                f"The ledger is not sound, so {month} cannot be closed; findings: {len(findings)}. "
                "Run 'cadenza ledger check' to see them."
            )
        await seal(store, month, span, now_ms)
        sealed = next(one for one in await months.list_months(store) if one.month == month)
    return await _finish(store, sealed, before, by, now_ms)


async def _finish(
    store: Store, sealed: ClosedMonth, before: ClosedMonth | None, by: Operator, now_ms: int
) -> ClosedMonth:
    closed = await compute(store, sealed, before, now_ms)
    balances = await balances_at(store, sealed.ends_at, before)
    if sum(one.balance_nano for one in balances) != closed.closing_nano:  # not `assert`: it would be written
        raise AssertionError("the balances of a month do not add up to its closing balance")
    await add_balances(store, sealed.month, balances)
    assert closed.hash
    detail = f"{closed.entries:,} entries, closing balance {format_dollars(closed.closing_nano)}, {closed.hash.hex()}"

    def finish(tx: Transaction) -> None:
        end(tx, closed)
        audit_events.add(tx, AuditEvent(now_ms, by, "ledger.close", None, sealed.month, detail))

    await store.transact(finish)
    return closed
