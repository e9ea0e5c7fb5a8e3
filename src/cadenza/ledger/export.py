"""The export of the ledger: every entry, with the metering row of its request and what was refunded of it."""

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import text

from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.spans import ALWAYS, Span
from cadenza.store.statements import Statement
from cadenza.store.store import Store

_COLUMNS = {  # by the name of the field
    "id": "e.id",
    "created_at": "e.created_at",
    "account": "a.email",
    "kind": "e.kind",
    "amount": "e.amount_nano",
    "amount_nano": "e.amount_nano",
    "completion_id": "e.completion_id",
    "request_id": "u.request_id",
    "class": "u.class_id",
    "prompt_tokens": "u.prompt_tokens",
    "cached_tokens": "u.cached_tokens",
    "completion_tokens": "u.completion_tokens",
    "estimated": "u.estimated",
    "note": "e.note",
    "provider": "u.provider",
    "model": "u.model",
    "key_id": "u.key_id",
    "input_nano": "u.input_nano",
    "output_nano": "u.output_nano",
    "cached_input_nano": "u.cached_input_nano",
    "short_nano": "u.short_nano",
    "source": "COALESCE(e.source, u.source)",
    "version": "u.version",
    "origin": "e.origin",
    "granted_nano": "e.granted_nano",
    "refunded_nano": "r.amount_nano",
    "account_id": "e.account_id",
    "created_at_ms": "e.created_at",
    "debt_id": "e.debt_id",
}
EXPORT_FIELDS = tuple(_COLUMNS)
REQUEST_FIELDS = tuple(name for name, sql in _COLUMNS.items() if "u." in sql)  # of the metering row
_EXPORT = f"""
    SELECT {", ".join(_COLUMNS.values())}
    FROM entries e JOIN accounts a ON a.id = e.account_id
    LEFT JOIN usage u ON u.completion_id = e.completion_id
    LEFT JOIN entries r ON r.source = 'refund:' || e.completion_id AND e.kind = 'charge'
    WHERE e.id > :after AND e.created_at >= :start AND e.created_at < :end"""  # noqa: S608 our own names
_OF_ONE = " AND e.account_id = (SELECT id FROM accounts WHERE email = :email)"
_OF_PAGE = " ORDER BY e.id LIMIT :page"
EXPORT_OF_ALL = Statement(text(_EXPORT + _OF_PAGE))
EXPORT_OF_ONE = Statement(text(_EXPORT + _OF_ONE + _OF_PAGE))
PAGE = 1000


def readable(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as a file has it: its time and its amount as people read them."""
    estimated = entry["estimated"]  # SQLite has no booleans
    return {
        **entry,
        "created_at": rfc3339(entry["created_at"]),
        "amount": format_dollars(entry["amount"]),
        "estimated": None if estimated is None else bool(estimated),
    }


async def export(store: Store, email: str | None, span: Span = ALWAYS) -> AsyncIterator[dict[str, Any]]:
    """Yield the entries of one account, or of all, oldest first, by EXPORT_FIELDS. At most one page is in memory."""
    after, values = 0, {"email": email, "page": PAGE, "start": span.start_ms, "end": span.end_ms}
    statement = EXPORT_OF_ALL if email is None else EXPORT_OF_ONE
    while rows := await store.report(statement, {**values, "after": after}):
        for row in rows:
            yield dict(zip(EXPORT_FIELDS, row, strict=True))
        after = rows[-1][0]
