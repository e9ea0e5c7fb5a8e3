"""What the limits of [retention] remove, a batch at a time, and how far they have come.

The row of each kind in `retention` is also what processes take turns by: one that has worked on it lately keeps it.
Events of accounts leave the audit log only if they are older than `kept_from` of its row: a trigger refuses the rest.
Metering rows before `kept_from` may be gone (ledger/check.py). What they add up to by day stays.
"""

from collections.abc import AsyncIterator
from typing import Literal

from sqlalchemy import Table, delete, text

from cadenza.store.schema import audit_events, links, sessions, usage
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.batches import BatchedChange

Kept = Literal["sessions", "links", "audit_events", "usage"]

CLAIM = Statement(
    text("""
    INSERT INTO retention (name, worked_at) VALUES (:name, :now) ON CONFLICT (name) DO UPDATE
    SET worked_at = :now WHERE retention.worked_at <= :due OR retention.worked_at > :now""")
)
WORKED = Statement(text("UPDATE retention SET worked_at = :now WHERE name = :name"))
KEEP_FROM = Statement(
    text("UPDATE retention SET kept_from = :before WHERE name = :name AND COALESCE(kept_from, 0) < :before")
)
FIRST_KEPT_EVENT = Statement(  # ids grow with time, so that the old events are found without reading the others
    text("SELECT id FROM audit_events WHERE account_id IS NOT NULL AND at >= :before ORDER BY id LIMIT 1")
)


def _removal(table: Table, id_: str, where: str) -> BatchedChange:
    return BatchedChange.of(table, id_, delete(table), text(where))


REMOVALS: dict[Kept, BatchedChange] = {
    "sessions": _removal(sessions, "digest", "(expires_at < :now OR used_at < :idle OR created_at < :began)"),
    "links": _removal(links, "digest", "expires_at <= :now"),
    "audit_events": _removal(audit_events, "id", "account_id IS NOT NULL AND at < :before AND id < :end"),
    "usage": _removal(usage, "completion_id", "started_at < :before AND completion_id < :end"),
}
OLDEST = {
    "requests": Statement(text("SELECT started_at FROM usage ORDER BY completion_id LIMIT 1")),
    "audit events": Statement(text("SELECT MIN(at) FROM audit_events WHERE account_id IS NOT NULL")),
    "sessions": Statement(text("SELECT MIN(created_at) FROM sessions")),
    "links in e-mails": Statement(text("SELECT MIN(created_at) FROM links")),
    "idempotency keys": Statement(text("SELECT MIN(created_at) FROM idempotency")),
}
NO_EVENT = 2**62


def claim(tx: Transaction, name: Kept, now_ms: int, every_ms: int) -> bool:
    """Take the turn to work on this. False if a process has worked on it lately."""
    return tx.change(CLAIM, {"name": name, "now": now_ms, "due": now_ms - every_ms}) == 1


def keep_turn(tx: Transaction, name: Kept, now_ms: int) -> None:
    tx.change(WORKED, {"name": name, "now": now_ms})


def keep_from(tx: Transaction, name: Kept, before_ms: int) -> None:
    """From now on, what is older may be removed."""
    tx.change(KEEP_FROM, {"name": name, "before": before_ms})


async def first_kept_event(store: Store, before_ms: int) -> int:
    """The id of the first event of an account that is not older."""
    found = await store.report(FIRST_KEPT_EVENT, {"before": before_ms})
    return int(found[0][0]) if found else NO_EVENT


def batches(store: Store, name: Kept, values: Values, count: int) -> AsyncIterator[list[Values]]:
    """What is too old, for `remove`."""
    return REMOVALS[name].batches(store, values, count)


def remove(tx: Transaction, name: Kept, rows: list[Values]) -> None:
    tx.change_each(REMOVALS[name].change, rows)


async def read_oldest(store: Store) -> dict[str, int | None]:
    """The time of the oldest row of each kind; None if there is none."""
    found = {name: await store.report(statement, {}) for name, statement in OLDEST.items()}
    return {name: rows[0][0] if rows else None for name, rows in found.items()}
