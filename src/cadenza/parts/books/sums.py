"""What the entries of a month add up to: by origin, and for each account at its end."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import text

from cadenza.core.spans import Span
from cadenza.ledger.months import ClosedMonth
from cadenza.store.statements import Statement
from cadenza.store.store import Store

OF_MONTH = "entries.id >= :first AND entries.created_at >= :since AND entries.created_at < :end"
SUMS = Statement(
    text(f"""
    SELECT CASE WHEN entries.created_at < :start THEN 'before' ELSE COALESCE(entries.origin, entries.kind) END,
    COUNT(*), SUM(entries.amount_nano), SUM(entries.granted_nano)
    FROM entries WHERE {OF_MONTH} GROUP BY 1""")  # noqa: S608 our own expressions
)
ACCOUNTS = Statement(
    text(f"""
    SELECT COUNT(DISTINCT entries.account_id) FROM entries WHERE {OF_MONTH}
    AND entries.created_at >= :start""")  # noqa: S608 our own expression
)
BALANCES = Statement(
    text(f"""
    SELECT account_id, SUM(amount), SUM(granted) FROM (
        SELECT account_id, balance_nano AS amount, granted_nano AS granted FROM closed_balances WHERE month = :before
        UNION ALL
        SELECT entries.account_id, entries.amount_nano, entries.granted_nano FROM entries WHERE {OF_MONTH}
    ) moves GROUP BY account_id ORDER BY account_id""")  # noqa: S608 our own expression
)
EMAILS = Statement(text("SELECT id, email FROM accounts"))
COUNT_ACCOUNTS = Statement(text("SELECT COUNT(*) FROM accounts WHERE created_at < :before"))
FIRST_ACCOUNT = Statement(text("SELECT MIN(created_at) FROM accounts"))
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


class AccountBalance(msgspec.Struct, frozen=True):
    """The balance of an account at the end of a month, and its granted part."""

    account_id: str
    balance_nano: int
    granted_nano: int

    @property
    def paid_nano(self) -> int:
        return self.balance_nano - self.granted_nano


def month_of(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m}"


def sums_of(closed: ClosedMonth) -> MonthSums:
    """As they were closed."""
    by_origin = msgspec.json.decode(closed.sums, type=dict[str, OriginSum])
    return MonthSums(OriginSum(0, closed.opening_nano, closed.opening_granted_nano), by_origin, closed.accounts)


def entries_after(before: ClosedMonth | None, end_ms: int) -> dict[str, Any]:
    """The entries since the closed month before: all of them, also if months without any are between."""
    return {
        "first": before.first_open_id if before else 0,
        "since": before.ends_at if before else 0,
        "end": end_ms,
    }


async def sum_month(store: Store, span: Span, before: ClosedMonth | None) -> MonthSums:
    """What the entries of a span add up to, from the balances with which an earlier month was closed."""
    values = {**entries_after(before, span.end_ms), "start": span.start_ms}
    rows = await store.report(SUMS, values)
    [(accounts,)] = await store.report(ACCOUNTS, values)
    opening = OriginSum(0, before.closing_nano, before.closing_granted_nano) if before else OriginSum()
    sums = {name: OriginSum(*map(int, found)) for name, *found in rows}
    if earlier := sums.pop("before", None):
        opening = OriginSum(0, opening.amount_nano + earlier.amount_nano, opening.granted_nano + earlier.granted_nano)
    return MonthSums(opening, dict(sorted(sums.items())), int(accounts))


async def balances_at(store: Store, end_ms: int, before: ClosedMonth | None) -> list[AccountBalance]:
    """The balance of each account with entries, at the end of a month that is sealed."""
    values = {**entries_after(before, end_ms), "before": before.month if before else ""}
    rows = await store.report(BALANCES, values)
    return [AccountBalance(account_id, int(balance), int(granted)) for account_id, balance, granted in rows]


async def read_emails(store: Store) -> dict[str, str]:
    return {row[0]: row[1] for row in await store.report(EMAILS, {})}


async def closed_balances(store: Store, month: str) -> list[AccountBalance]:
    return [AccountBalance(*row) for row in await store.report(OF_CLOSED, {"month": month})]


async def count_accounts(store: Store, before_ms: int) -> int:
    """How many accounts were created before a time."""
    [(found,)] = await store.report(COUNT_ACCOUNTS, {"before": before_ms})
    return int(found)


async def first_account(store: Store) -> int | None:
    """When the first account was created."""
    [(at,)] = await store.report(FIRST_ACCOUNT, {})
    return None if at is None else int(at)
