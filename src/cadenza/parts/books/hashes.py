"""The hash of a month: it covers the entries of the month, and the hash of the closed month before it."""

import hashlib
from collections.abc import AsyncIterator

import msgspec
from sqlalchemy import text

from cadenza.core.formats import escape_formula
from cadenza.ledger.months import ClosedMonth
from cadenza.parts.books.sums import OF_MONTH, entries_after
from cadenza.store.statements import Statement
from cadenza.store.store import Store

PAGE = 1000
HASHED = Statement(
    text(f"""
    SELECT entries.id, entries.created_at, entries.account_id, entries.kind, entries.amount_nano, entries.granted_nano,
    entries.origin, entries.completion_id, entries.source, entries.debt_id, entries.note
    FROM entries WHERE {OF_MONTH} ORDER BY entries.id LIMIT :page""")  # noqa: S608 our own expressions
)


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
    values = {**entries_after(before, end_ms), "page": PAGE}
    while rows := await store.report(HASHED, values):
        for row in rows:
            yield HashedEntry(*row)
        values["first"] = rows[-1][0] + 1


async def hash_month(store: Store, month: str, end_ms: int, before: ClosedMonth | None) -> MonthHash:
    found = MonthHash(month, (before and before.hash) or b"")
    async for entry in read_entries(store, end_ms, before):
        found.add(entry)
    return found
