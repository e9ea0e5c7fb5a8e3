"""What the pages of operators read: totals, the use of the last hours, accounts."""

import msgspec

from cadenza.control.money.statement import newest_lines
from cadenza.control.requests import is_plain
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import Report
from cadenza.ledger import statement
from cadenza.ledger.statement import Entry
from cadenza.parts.site.tables import operators
from cadenza.parts.site.tables.operators import (
    FIRST_TOKEN_MS,
    ClassUse,
    Totals,
    UseStep,
)
from cadenza.store.store import Store
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import LoggedEvent
from cadenza.store.tables.keys import OwnedKey, list_newest
from cadenza.store.tables.metered import first_id
from cadenza.store.tables.usage import report

USAGE_DAYS = 30
ACCOUNTS_PAGE = 50
FINAL_AFTER_MS = 30 * 60_000
NO_FIRST_TOKENS = (0,) * (len(FIRST_TOKEN_MS) + 1)
KEYS_SHOWN = 100
AUDIT_EVENTS_SHOWN = 10
ENTRIES_SHOWN = 20


class ServiceOverview(msgspec.Struct, frozen=True):
    """All accounts, and what they have used since midnight, UTC."""

    totals: Totals
    today_start_ms: int
    today: list[ClassUse]
    hosts: list[tuple[str, int]]  # of a fleet, with the number of their processes


class AccountsPage(msgspec.Struct, frozen=True):
    """A page of accounts. `next_after` is the address to go on after; None on the last page."""

    accounts: list[Account]
    next_after: str | None


class AccountDetails(msgspec.Struct, frozen=True):
    """One account: its newest keys, entries and audit events, its usage of the last 30 days, and its sessions."""

    account: Account
    keys: list[OwnedKey]
    has_more_keys: bool
    usage: Report
    sessions: int
    audit_events: list[LoggedEvent]
    entries: list[Entry]


async def get_overview(store: Store, now_ms: int) -> ServiceOverview:
    start_ms = now_ms - now_ms % DAY_MS
    today = await operators.use_since(store, start_ms // DAY_MS)
    hosts = await operators.list_hosts(store) if store.is_shared_by_machines else []
    return ServiceOverview(await operators.totals(store), start_ms, today, hosts)


class UseHistory:
    """What was used, in steps of time. A page reads what has not been read before, and the newest steps again.

    A request is in the step in which it began, and is written when it ends: a step is final some time after its end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._final: dict[int, dict[int, UseStep]] = {}  # by the length of a step, and its start

    async def read(self, start_ms: int, step_ms: int, count: int) -> list[UseStep]:
        """`count` steps since `start_ms`, a multiple of their length, each with its numbers or zeros."""
        starts = [start_ms + place * step_ms for place in range(count)]
        final = self._final.get(step_ms, {})
        first_ms = next((at_ms for at_ms in starts if at_ms not in final), starts[-1])
        rows = await operators.use_by_step(self._store, first_id(first_ms), first_ms, step_ms)
        found = {one.start_ms: one for one in rows}
        steps = [
            final[at_ms] if at_ms < first_ms else found.get(at_ms) or UseStep(at_ms, 0, 0, 0, 0, 0, NO_FIRST_TOKENS)
            for at_ms in starts
        ]
        last_ms = starts[-1] - FINAL_AFTER_MS
        self._final[step_ms] = {one.start_ms: one for one in steps if one.start_ms + step_ms <= last_ms}
        return steps


async def search_accounts(store: Store, part: str, after: str = "", count: int = ACCOUNTS_PAGE) -> AccountsPage:
    """Accounts whose address has this part, in the order of their addresses."""
    if not is_plain(part + after):
        return AccountsPage([], None)
    found = await operators.search(store, part.strip().lower(), after, count + 1)
    return AccountsPage(found[:count], found[count - 1].email if len(found) > count else None)


async def get_account_by_id(store: Store, account_id: str) -> Account | None:
    return await accounts.get(store, account_id) if is_plain(account_id) else None


async def get_details(store: Store, account_id: str, now_ms: int) -> AccountDetails | None:
    account = await get_account_by_id(store, account_id)
    if account is None:
        return None
    found = await list_newest(store, "account_id", account_id, now_ms, KEYS_SHOWN + 1)
    return AccountDetails(
        account=account,
        keys=found[:KEYS_SHOWN],
        has_more_keys=len(found) > KEYS_SHOWN,
        usage=await report(
            store, account_id, Span(now_ms - USAGE_DAYS * DAY_MS, now_ms + 1), "model", by_operator=True
        ),
        sessions=await operators.count_sessions(store, account_id, now_ms),
        audit_events=await audit_events.list_newest(store, account_id, count=AUDIT_EVENTS_SHOWN),
        entries=newest_lines(await statement.list_newest(store, account_id, ENTRIES_SHOWN)),
    )
