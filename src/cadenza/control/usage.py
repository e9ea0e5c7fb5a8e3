"""Usage and the ledger, for whoever may see them: the report of an account, the audit, the export."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cadenza.control.accounts import find_account
from cadenza.core.usage_report import GroupBy, Report, Span
from cadenza.store import audit
from cadenza.store.database import Database
from cadenza.store.usage import report


async def usage_report(db: Database, email: str, span: Span, group_by: GroupBy) -> Report:
    async with db.read() as conn:
        account = await find_account(conn, email)
        return await report(conn, account.id, span, group_by)


async def check_ledger(db: Database) -> tuple[list[audit.Finding], audit.Counts]:
    async with db.read() as conn:
        return await audit.check(conn), await audit.count(conn)


@asynccontextmanager
async def export_ledger(db: Database, email: str | None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The entries of one account, or of all. An account that is not there is refused before the first."""
    async with db.read() as conn:
        known = (await find_account(conn, email)).email if email else None
        yield audit.export(conn, known)
