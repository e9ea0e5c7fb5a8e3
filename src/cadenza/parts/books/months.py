"""Months for finance: the report of a month over all accounts, and its payments compared with those of the provider."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.core.spans import DAY_MS, Span, month_span
from cadenza.ledger import months, payments
from cadenza.ledger.months import ClosedMonth
from cadenza.ledger.payments import PaymentIds, ProviderPayment
from cadenza.parts.books import payment_rows
from cadenza.parts.books.payment_rows import PaymentDay
from cadenza.parts.books.sums import (
    MonthSums,
    OriginSum,
    balances_at,
    closed_balances,
    count_accounts,
    first_account,
    month_of,
    read_emails,
    sum_month,
    sums_of,
)
from cadenza.store.store import Store

LISTED_BEFORE_MS = 4 * DAY_MS  # Stripe repeats an event for three days
LINES = {  # of a report, by the origins of their entries
    "Paid": ("payment",),
    "Granted": ("opening", "voucher", "grant"),
    "Charged": ("charge",),
    "Refunded": ("refund", "late-end"),
    "Corrected": ("correction", "erasure"),
    "Returned or disputed": ("return", "dispute", "debt"),
    "Expired": ("expiry",),
}
REPORT_FIELDS = ("line", "origin", "day", "provider", "count", "amount", "paid", "granted")
BALANCE_FIELDS = ("account_id", "email", "balance", "paid", "granted")
MonthState = Literal["open", "over", "closed"]


class MonthReport(msgspec.Struct, frozen=True):
    """What all accounts had, got and spent in a month. A closed month is reported as it was closed."""

    month: str
    span: Span
    sums: MonthSums
    accounts: int  # that existed at its end
    payments: list[PaymentDay]
    closed: ClosedMonth | None
    is_over: bool

    @property
    def state(self) -> MonthState:
        return "closed" if self.closed else "over" if self.is_over else "open"

    def lines(self) -> list[tuple[str, OriginSum]]:
        """The opening balance, what changed it, and the closing balance: the first ones add up to the last."""
        changes = [(name, self._sum(origins)) for name, origins in LINES.items()]
        assert self.sums.opening + sum((one for _, one in changes), OriginSum()) == self.sums.closing
        return [("Opening balance", self.sums.opening), *changes, ("Closing balance", _total(self.sums.closing))]

    def rows(self) -> list[dict[str, str | int | None]]:
        """The lines, what each origin adds to them, and the payments by day, by REPORT_FIELDS. Amounts are dollars."""
        found = []
        for line, total in self.lines():
            found.append(_row(line, total))
            origins = LINES.get(line, ())
            found += [_row(line, self.sums.by_origin[one], origin=one) for one in origins if one in self.sums.by_origin]
        for one in self.payments:
            paid = OriginSum(one.count, one.amount_nano)
            found.append(_row("Payments", paid, day=one.day, provider=one.provider))
        return found

    def _sum(self, origins: Iterable[str]) -> OriginSum:
        return sum((self.sums.by_origin.get(origin, OriginSum()) for origin in origins), OriginSum())


class Compared(msgspec.Struct, frozen=True):
    """The payments of a month at the provider, by its own dates, and how they differ from the store."""

    count: int
    amount_nano: int
    others: int  # payments of other programs, which are left out
    differences: list[str]


def _row(line: str, total: OriginSum, **rest: str) -> dict[str, str | int | None]:
    values: dict[str, str | int | None] = {
        "line": line,
        "count": total.count,
        "amount": format_dollars(total.amount_nano),
        "paid": format_dollars(total.paid_nano),
        "granted": format_dollars(total.granted_nano),
        **rest,
    }
    return {name: values.get(name) for name in REPORT_FIELDS}


def _total(sum_of: OriginSum) -> OriginSum:
    return msgspec.structs.replace(sum_of, count=0)


async def report_month(store: Store, month: str, now_ms: int) -> MonthReport:
    span = month_span(month)
    if now_ms < span.start_ms:
        raise ValueError(f"month: {month} has not begun.")
    found = await months.list_months(store)
    closed = next((one for one in found if one.month == month and one.hash), None)
    before = months.month_before(found, span.start_ms)
    sums = sums_of(closed) if closed else await sum_month(store, span, before)
    return MonthReport(
        month,
        span,
        sums,
        await count_accounts(store, span.end_ms),
        await payment_rows.sum_days(store, span),
        closed,
        now_ms >= span.end_ms,
    )


async def list_months(store: Store, now_ms: int, count: int) -> list[tuple[str, ClosedMonth | None]]:
    """The newest months since the first account was created, newest first, and how they were closed."""
    closed = {one.month: one for one in await months.list_months(store) if one.hash}
    first_ms, at_ms, found = await first_account(store), now_ms, list[tuple[str, ClosedMonth | None]]()
    while first_ms is not None and at_ms >= first_ms and len(found) < count:
        month = month_of(at_ms)
        found.append((month, closed.get(month)))
        at_ms = month_span(month).start_ms - 1
    return found


async def list_balances(store: Store, month: str) -> list[dict[str, str]]:
    """What each account with entries had at the end of a month, by BALANCE_FIELDS. They add up to its closing line."""
    span, found = month_span(month), await months.list_months(store)
    if any(one.month == month and one.hash for one in found):
        balances = await closed_balances(store, month)
    else:
        balances = await balances_at(store, span.end_ms, months.month_before(found, span.start_ms))
    emails = await read_emails(store)
    return [
        {
            "account_id": one.account_id,
            "email": emails[one.account_id],
            "balance": format_dollars(one.balance_nano),
            "paid": format_dollars(one.paid_nano),
            "granted": format_dollars(one.granted_nano),
        }
        for one in sorted(balances, key=lambda one: one.account_id)
    ]


async def compare_payments(store: Store, month: str, listed: Sequence[ProviderPayment]) -> Compared:
    """Compare the payments that gave credit in a month with what the provider lists from LISTED_BEFORE_MS before it on.

    A payment whose event came late gives credit after the provider's date of it, at most that long.
    """
    span = month_span(month)
    at_provider = {one.payment_id: one for one in listed if one.payment_id}
    here = {one.id: one for one in await payment_rows.list_credited(store, span) if one.provider == "stripe"}
    differences = []
    for one in here.values():
        found = at_provider.get(one.id)
        if found is None:
            differences.append(f"{one.id} ({one.checkout}) gave credit, but the provider does not list it")
        elif found.amount_nano != one.amount_nano:
            differences.append(f"{one.id} is {_dollars(one.amount_nano)} here and {_dollars(found.amount_nano)} there")
        elif found.refunded_nano != one.refunded_nano:
            shown = f"{_dollars(one.refunded_nano)} here and {_dollars(found.refunded_nano)} there"
            differences.append(f"{one.id}: {shown} were refunded")
    of_month = [one for one in at_provider.values() if span.start_ms <= one.created_at < span.end_ms]
    for found in of_month:
        known = here.get(found.payment_id) or await payments.find(store, "stripe", PaymentIds(found.payment_id))
        if known is None or known.state in {"open", "expired"}:
            differences.append(f"{found.id} was paid at the provider, but gave no credit")
    return Compared(
        len(of_month), sum(one.amount_nano or 0 for one in of_month), len(listed) - len(at_provider), differences
    )


def _dollars(amount_nano: int | None) -> str:
    return "an unknown amount" if amount_nano is None else format_dollars(amount_nano)


def listing_span(month: str) -> Span:
    """The span whose payments the provider must list to compare a month."""
    span = month_span(month)
    return Span(span.start_ms - LISTED_BEFORE_MS, span.end_ms)
