"""What payments gave and what was taken back of them in a month, for its report."""

import msgspec
from sqlalchemy import text

from cadenza.core.spans import DAY_MS, Span, day_of
from cadenza.ledger.origins import Origin
from cadenza.ledger.payments import PaymentState
from cadenza.store.statements import Statement
from cadenza.store.store import Store


class PaymentDay(msgspec.Struct, frozen=True):
    """What payments gave as credit on a day, by provider."""

    day: str
    provider: str
    count: int
    amount_nano: int


class CreditedPayment(msgspec.Struct, frozen=True):
    """A payment that gave credit. What was refunded is as of now."""

    id: str
    provider: str
    checkout: str
    amount_nano: int
    refunded_nano: int
    state: PaymentState


class PaymentEntry(msgspec.Struct, frozen=True):
    """An entry that a payment made, or what was returned or disputed of one.

    The source is our id of a payment, the provider's of an event or a dispute, or stands for the reference of a refund
    of a bank transfer, which the note names. What pays a debt has the source of the debt.
    """

    id: int
    created_at: int
    origin: Origin
    provider: str | None  # this, checkout and reference are of payments
    checkout: str | None
    reference: str | None
    account_id: str
    amount_nano: int
    source: str | None
    note: str


_CREDITED = (
    "FROM entries JOIN payments ON payments.id = entries.source"
    " WHERE entries.kind = 'grant' AND entries.created_at >= :start AND entries.created_at < :end"
)
SUM_DAYS = Statement(
    text(f"""
    SELECT entries.created_at / {DAY_MS}, payments.provider, COUNT(*), SUM(entries.amount_nano)
    {_CREDITED} GROUP BY 1, 2 ORDER BY 1, 2""")
)
LIST_CREDITED = Statement(
    text(f"""
    SELECT payments.id, provider, checkout, payments.amount_nano, refunded_nano, state
    {_CREDITED} ORDER BY entries.id""")
)
LIST_ENTRIES = Statement(
    text("""
    SELECT entries.id, entries.created_at, origin, provider, checkout, reference, entries.account_id,
    entries.amount_nano, COALESCE(entries.source, debts.source), entries.note
    FROM entries LEFT JOIN payments ON payments.id = entries.source LEFT JOIN debts ON debts.id = entries.debt_id
    WHERE origin IN ('payment', 'return', 'dispute', 'debt') AND entries.kind IN ('grant', 'correction')
    AND entries.created_at >= :start AND entries.created_at < :end ORDER BY entries.id""")
)


async def sum_days(store: Store, span: Span) -> list[PaymentDay]:
    """What payments gave as credit, by day (UTC) and provider."""
    rows = await store.report(SUM_DAYS, {"start": span.start_ms, "end": span.end_ms})
    return [
        PaymentDay(day_of(int(day) * DAY_MS), provider, int(count), int(nano)) for day, provider, count, nano in rows
    ]


async def list_credited(store: Store, span: Span) -> list[CreditedPayment]:
    """The payments that gave credit in a span, oldest first."""
    rows = await store.report(LIST_CREDITED, {"start": span.start_ms, "end": span.end_ms})
    return [CreditedPayment(*row) for row in rows]


async def list_entries(store: Store, span: Span) -> list[PaymentEntry]:
    """What payments gave in a span, and what was returned or disputed of any payment, oldest first.

    Of a month, they add up to the lines Paid and Returned or disputed of its report.
    """
    rows = await store.report(LIST_ENTRIES, {"start": span.start_ms, "end": span.end_ms})
    return [PaymentEntry(*row) for row in rows]
