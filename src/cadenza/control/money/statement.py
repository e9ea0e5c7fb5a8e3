"""What an account paid and used: statement, usage reports, spending rate; and the check and export of the ledger."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from cadenza.control.account.accounts import get_account
from cadenza.core.errors import ControlError
from cadenza.core.money import TOKENS_PER_PRICE, format_dollars
from cadenza.core.records import SEARCH, Owner
from cadenza.core.spans import ALWAYS, DAY_MS, Span
from cadenza.core.usage_report import (
    GroupBy,
    KeyUsage,
    Overview,
    Report,
    SpendingRate,
    fill_days,
    spending_days,
    spending_rate,
)
from cadenza.ledger import check, months, statement
from cadenza.ledger.export import export
from cadenza.ledger.lots import list_expiring
from cadenza.ledger.months import ClosedMonth
from cadenza.ledger.statement import Entry, PeriodSums
from cadenza.store.store import Store
from cadenza.store.tables import usage
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import list_newest
from cadenza.store.tables.usage import report

PAGE = 50
KINDS = {"grant": "Credit added", "correction": "Correction"}
WORDS = {"refund": "Refund of a request", "expiry": "Credit expired", "return": "Returned", "debt": "Debt"}
NUMBER_MAX = 2**62
KEYS_SHOWN = 10
KEYS_EXPORTED_MAX = 10_000


class Cursor(msgspec.Struct, frozen=True):
    """Where a page ends: its last entry, and the balance before that entry."""

    entry: int
    balance_nano: int

    def __str__(self) -> str:
        return f"{self.entry}.{self.balance_nano}"


class StatementPage(msgspec.Struct, frozen=True):
    """The lines of entries, newest first, and where the next page begins, if there is one."""

    entries: list[Entry]
    next: Cursor | None


async def read_statement(
    store: Store, owner: Owner, cursor: str = "", count: int = PAGE, span: Span | None = None
) -> StatementPage:
    """The newest entries, of a span if there is one, or those after the cursor of the page before."""
    at = _parse(cursor) if cursor else None
    if span:
        before = at.entry if at else statement.NO_ENTRY
        read = await statement.list_span(store, owner.account_id, span, count + 1, before)
    elif at:
        read = await statement.list_newest(store, owner.account_id, count + 1, at.entry, at.balance_nano)
    else:
        read = await statement.list_newest(store, owner.account_id, count + 1)
    shown = read[:count]
    last = shown[-1] if len(read) > count else None
    cursor_after = Cursor(last.id, last.balance_nano - last.amount_nano) if last else None
    return StatementPage(newest_lines(shown), cursor_after)


async def export_statement(store: Store, owner: Owner, span: Span = ALWAYS) -> AsyncIterator[Entry]:
    """Every entry of a span, oldest first."""
    async for entry in statement.all_entries(store, owner.account_id, span):
        for line in _lines(entry):
            yield line


def newest_lines(entries: Sequence[Entry]) -> list[Entry]:
    """The lines of entries, newest first."""
    return [line for entry in entries for line in reversed(_lines(entry))]


def _lines(entry: Entry) -> tuple[Entry, ...]:
    """An entry that left a debt is two lines, oldest first: the debt, and all that was taken back."""
    if not entry.owed_nano:
        return (entry,)
    debt = msgspec.structs.replace(
        entry,
        amount_nano=entry.owed_nano,
        balance_nano=entry.balance_nano - entry.amount_nano + entry.owed_nano,
        origin="debt",
        note=f"{entry.note}: leaves a debt of {format_dollars(entry.owed_nano)} dollars",
        granted_nano=0,
    )
    return debt, msgspec.structs.replace(entry, amount_nano=entry.amount_nano - entry.owed_nano)


async def sum_entries(store: Store, owner: Owner, span: Span) -> PeriodSums:
    """The opening and the closing balance of a span, and what changed it."""
    return await statement.sum_entries(store, owner.account_id, span)


def describe_entry(entry: Entry) -> str:
    """What an entry is, in plain words."""
    if entry.kind == "charge" and entry.class_id == SEARCH:
        return "Web search"
    if entry.kind == "charge":
        tokens = (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)
        return f"Request to {entry.class_id}, {tokens:,} tokens" if entry.class_id else "Request"
    what = WORDS.get(entry.origin or "") or KINDS[entry.kind]
    return f"{what}: {entry.note}" if entry.note else what


def explain_entry(entry: Entry) -> str:
    """How a charge comes about: its tokens and their prices. Empty for other entries, and without a metering row."""
    if entry.kind != "charge" or entry.input_nano is None or entry.class_id == SEARCH:
        return ""
    cached_tokens = entry.cached_tokens or 0
    parts = [
        (f"{(entry.prompt_tokens or 0) - cached_tokens:,} tokens in", entry.input_nano),
        (f"{cached_tokens:,} cached", entry.input_nano if entry.cached_input_nano is None else entry.cached_input_nano),
        (f"{entry.completion_tokens or 0:,} out", entry.output_nano or 0),
    ]
    shown = [f"{what} at {format_dollars(nano * TOKENS_PER_PRICE)}" for what, nano in parts if what != "0 cached"]
    return ", ".join(shown) + " dollars per million"


def _parse(cursor: str) -> Cursor:
    entry, _, balance = cursor.partition(".")
    is_number = all(part.isascii() and part.isdecimal() and len(part) <= 20 for part in (entry, balance))
    if not is_number or max(int(entry), int(balance)) > NUMBER_MAX:
        raise ControlError("This page of the statement does not exist: begin with the newest entries.")
    return Cursor(int(entry), int(balance))


async def usage_report(store: Store, email: str | None, span: Span, group_by: GroupBy) -> Report:
    """Of one account or of all, for the command line. Pages know the account's id and call `report`."""
    return await report(store, (await get_account(store, email)).id if email else None, span, group_by)


async def names_of_keys(store: Store, report: Report, now_ms: int) -> dict[str, str]:
    """By the ids of the keys in a report: their names and first characters. The web application's has neither."""
    found = [one for key_id, _ in report.groups for one in await list_newest(store, "id", key_id, now_ms, 1)]
    return {one.id: f"{one.name} {one.prefix}…".strip() for one in found}


async def usage_by_key(store: Store, owner: Owner, span: Span) -> list[KeyUsage]:
    """The keys that were used, most expensive first."""
    found, _ = await usage.by_key(store, owner.account_id, span, KEYS_EXPORTED_MAX)
    return found


async def usage_overview(store: Store, owner: Owner, span: Span) -> Overview:
    """Usage by day and class, and the most expensive keys. A span has at most a few hundred days."""
    days = fill_days(span, await usage.by_day_and_class(store, owner.account_id, span))
    keys, keys_in_all = await usage.by_key(store, owner.account_id, span, KEYS_SHOWN)
    return Overview(span, days, keys, keys_in_all)


async def key_overview(store: Store, owner: Owner, key_id: str, span: Span) -> Overview:
    """The usage of one key by day and class."""
    days = fill_days(span, await usage.by_day_and_class(store, owner.account_id, span, key_id))
    return Overview(span, days, [], 1)


async def pace(store: Store, account: Account, now_ms: int) -> SpendingRate:
    """What the account spent per day over the last 7 days, and how long its balance lasts at that rate."""
    days = spending_days(account.created_at, now_ms)
    spent_nano = await usage.spent(store, account.id, Span(now_ms - days * DAY_MS, now_ms + 1))
    lots = await list_expiring(store, account.id, account.granted_nano)
    expiring = [(lot.left_nano, lot.expires_at) for lot in lots if lot.expires_at is not None]
    return spending_rate(spent_nano, days, account.balance_nano, now_ms, expiring)


class LedgerState(msgspec.Struct, frozen=True):
    """What a check of the ledger found, how much it read, and since which closed month."""

    findings: list[check.Violation]
    counts: check.CheckCounts
    closed: ClosedMonth | None


CheckLedger = Callable[[Store], Awaitable[LedgerState]]


async def check_ledger(store: Store) -> LedgerState:
    """Check everything since the last closed month."""
    closed = months.newest(await months.list_months(store))
    return LedgerState(await check.find_violations(store, closed), await check.count(store, closed), closed)


async def export_ledger(store: Store, email: str | None, span: Span = ALWAYS) -> AsyncIterator[dict[str, Any]]:
    """Return the entries of one account, or of all. An unknown account is refused before the first entry."""
    known = (await get_account(store, email)).email if email else None
    return export(store, known, span)
