"""Usage and the ledger: the report of an account, its overview and pace, the check and the export."""

from collections.abc import AsyncIterator
from typing import Any

from cadenza.control.account.accounts import get_account
from cadenza.core.usage_report import (
    DAY_MS,
    GroupBy,
    KeyUsage,
    Overview,
    Pace,
    Report,
    Span,
    fill_days,
    pace_days,
    pace_of,
)
from cadenza.ledger import audit
from cadenza.store.store import Store
from cadenza.store.tables import usage
from cadenza.store.tables.usage import report

KEYS_SHOWN = 10
KEYS_EXPORTED_MAX = 10_000


async def usage_report(store: Store, email: str, span: Span, group_by: GroupBy) -> Report:
    account = await get_account(store, email)
    return await report(store, account.id, span, group_by)


async def own_usage_report(store: Store, account_id: str, span: Span, group_by: GroupBy) -> Report:
    """`usage_report` for the owner of an account that is known by its id."""
    return await report(store, account_id, span, group_by)


async def usage_by_key(store: Store, account_id: str, span: Span) -> list[KeyUsage]:
    """The keys that were used, with their names, those that cost most first."""
    found, _ = await usage.by_key(store, account_id, span, KEYS_EXPORTED_MAX)
    return found


async def usage_overview(store: Store, account_id: str, span: Span) -> Overview:
    """Usage by day and class, and the keys that cost most. A span has at most some hundred days."""
    days = fill_days(span, await usage.by_day_and_class(store, account_id, span))
    keys, keys_in_all = await usage.by_key(store, account_id, span, KEYS_SHOWN)
    return Overview(span, days, keys, keys_in_all)


async def pace(store: Store, account_id: str, now_ms: int) -> Pace:
    """What the account spent a day, over the last 7 days, and until when its balance lasts."""
    balance_nano, created_at = await usage.balance(store, account_id)
    days = pace_days(created_at, now_ms)
    spent_nano = await usage.spent(store, account_id, Span(now_ms - days * DAY_MS, now_ms + 1))
    return pace_of(spent_nano, days, balance_nano, now_ms)


async def check_ledger(store: Store) -> tuple[list[audit.Violation], audit.AuditCounts]:
    return await audit.check(store), await audit.count(store)


async def export_ledger(store: Store, email: str | None) -> AsyncIterator[dict[str, Any]]:
    """Return the entries of one account, or of all. An unknown account is refused before the first entry."""
    known = (await get_account(store, email)).email if email else None
    return audit.export(store, known)
