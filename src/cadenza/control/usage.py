"""Usage and the ledger, for whoever may see them: the report of an account, the audit, the export."""

from collections.abc import AsyncIterator
from typing import Any

from cadenza.control.accounts import find_account
from cadenza.core.report import GroupBy, Report, Span
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


async def export_ledger(db: Database, email: str | None) -> AsyncIterator[dict[str, Any]]:
    async with db.read() as conn:
        if email:
            email = (await find_account(conn, email)).email
        async for entry in audit.export(conn, email):
            yield entry
