"""What operators see: the totals, accounts, keys and the audit log; and the signal to reload the config."""

import msgspec

from cadenza.control.account.accounts import get_account
from cadenza.control.money.statement import newest_lines
from cadenza.core.spans import DAY_MS, Span
from cadenza.core.usage_report import Report
from cadenza.fleet.changes import make_change
from cadenza.ledger import statement
from cadenza.ledger.statement import Entry
from cadenza.store.store import Store
from cadenza.store.tables import accounts, audit_events, epochs, operators
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import NEWEST, LoggedEvent
from cadenza.store.tables.keys import OwnedKey, list_newest
from cadenza.store.tables.metered import first_id
from cadenza.store.tables.operators import (
    FIRST_TOKEN_MS,
    ClassUse,
    FoundRequest,
    Totals,
    UseStep,
)
from cadenza.store.tables.usage import report

USAGE_DAYS = 30
ACCOUNTS_PAGE = 50
FINAL_AFTER_MS = 30 * 60_000
NO_FIRST_TOKENS = (0,) * (len(FIRST_TOKEN_MS) + 1)
KEYS_SHOWN = 100
AUDIT_EVENTS_SHOWN = 10
ENTRIES_SHOWN = 20
PAGE = 50


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


async def find_requests(store: Store, text: str, now_ms: int) -> list[FoundRequest]:
    """The request with this completion id, or those of the last day with this request id.

    Request ids have no index, so older requests are found by their completion id only; the log has both.
    """
    if not _is_plain(text):
        return []
    start_ms = now_ms - DAY_MS
    return await operators.find_requests(store, text, first_id(start_ms), start_ms, PAGE)


async def search_accounts(store: Store, part: str, after: str = "", count: int = ACCOUNTS_PAGE) -> AccountsPage:
    """Accounts whose address has this part, in the order of their addresses."""
    if not _is_plain(part + after):
        return AccountsPage([], None)
    found = await operators.search(store, part.strip().lower(), after, count + 1)
    return AccountsPage(found[:count], found[count - 1].email if len(found) > count else None)


async def get_account_by_id(store: Store, account_id: str) -> Account | None:
    return await accounts.get(store, account_id) if _is_plain(account_id) else None


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


def _is_plain(text: str) -> bool:
    """Whether this can be a part of an id or an address. For anything else the store is not asked."""
    return text.isascii() and text.isprintable()


async def list_audit_events(
    store: Store, email: str | None = None, before: int = NEWEST, count: int = PAGE
) -> list[LoggedEvent]:
    """The newest events, newest first: of the account with this address, or of all. `before` is the last id seen."""
    account_id = (await get_account(store, email)).id if email else None
    return await audit_events.list_newest(store, account_id, before, count)


async def announce_reload(store: Store) -> None:
    """Have every process on this store read its own config file again before its next request."""
    await make_change(store, lambda tx: epochs.begin_next(tx, epochs.CLASSES))
