"""Usage and the ledger: the report of an account, the check and the export."""

from collections.abc import AsyncIterator
from typing import Any

from cadenza.control.accounts import get_account
from cadenza.core.usage_report import GroupBy, Report, Span
from cadenza.store import audit
from cadenza.store.store import Store
from cadenza.store.usage import report


async def usage_report(store: Store, email: str, span: Span, group_by: GroupBy) -> Report:
    account = await get_account(store, email)
    return await report(store, account.id, span, group_by)


async def check_ledger(store: Store) -> tuple[list[audit.Finding], audit.Counts]:
    return await audit.check(store), await audit.count(store)


async def export_ledger(store: Store, email: str | None) -> AsyncIterator[dict[str, Any]]:
    """Return the entries of one account, or of all. An unknown account is refused before the first entry."""
    known = (await get_account(store, email)).email if email else None
    return audit.export(store, known)
