"""The statement of an account: every entry in plain words, with the balance after it."""

from collections.abc import AsyncIterator

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.records import SEARCH
from cadenza.ledger import statement
from cadenza.ledger.statement import Entry
from cadenza.store.store import Store

PAGE = 50
NUMBER_MAX = 2**62


class Cursor(msgspec.Struct, frozen=True):
    """Where a page ends: its last entry, and the balance before that entry."""

    entry: int
    balance_nano: int

    def __str__(self) -> str:
        return f"{self.entry}.{self.balance_nano}"


class StatementPage(msgspec.Struct, frozen=True):
    """Entries, newest first, and where the next page begins, if there is one."""

    entries: list[Entry]
    next: Cursor | None


async def read_statement(store: Store, account_id: str, cursor: str = "", count: int = PAGE) -> StatementPage:
    """The newest entries, or those after the cursor of the page before."""
    if cursor:
        at = _parse(cursor)
        found = await statement.list_before(store, account_id, at.entry, at.balance_nano, count + 1)
    else:
        found = await statement.list_newest(store, account_id, count + 1)
    shown = found[:count]
    last = shown[-1] if len(found) > count else None
    return StatementPage(shown, Cursor(last.id, last.balance_nano - last.amount_nano) if last else None)


def export_statement(store: Store, account_id: str) -> AsyncIterator[Entry]:
    """Every entry, oldest first."""
    return statement.all_entries(store, account_id)


def describe_entry(entry: Entry) -> str:
    """What an entry is, in plain words."""
    if entry.kind == "charge" and entry.class_id == SEARCH:
        return "Web search"
    if entry.kind == "charge":
        tokens = (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)
        return f"Request to {entry.class_id}, {tokens:,} tokens" if entry.class_id else "Request"
    if entry.kind == "correction":
        return f"Correction: {entry.note}" if entry.note else "Correction"
    return f"Credit added: {entry.note}" if entry.note else "Credit added"


def _parse(cursor: str) -> Cursor:
    entry, _, balance = cursor.partition(".")
    if not (entry.isascii() and entry.isdecimal() and balance.isascii() and balance.isdecimal()):
        raise ControlError("This page of the statement does not exist: begin with the newest entries.")
    if max(len(entry), len(balance)) > 20 or max(int(entry), int(balance)) > NUMBER_MAX:
        raise ControlError("This page of the statement does not exist: begin with the newest entries.")
    return Cursor(int(entry), int(balance))
