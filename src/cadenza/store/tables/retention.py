"""What the limits of [retention] remove, a slice at a time, and how far they have come.

The row of each kind in `retention` is also what processes take turns by: one that has worked on it lately keeps it.
Events of accounts leave the audit log only if they are older than `kept_from` of its row: a trigger refuses the rest.
"""

from typing import Literal

import msgspec
from sqlalchemy import select, text

from cadenza.store.schema import retention
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

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
REMOVE_SESSIONS = Statement(
    text("""
    DELETE FROM sessions WHERE digest IN (
        SELECT digest FROM sessions WHERE expires_at < :now OR used_at < :idle OR created_at < :began LIMIT :count)""")
)
REMOVE_LINKS = Statement(
    text("DELETE FROM links WHERE digest IN (SELECT digest FROM links WHERE expires_at <= :now LIMIT :count)")
)
REMOVE_AUDIT_EVENTS = Statement(  # their ids grow with time, so that the old ones are found without reading the others
    text("""
    DELETE FROM acts WHERE id IN (
        SELECT id FROM acts WHERE account_id IS NOT NULL AND at < :before AND id < COALESCE(
            (SELECT id FROM acts WHERE account_id IS NOT NULL AND at >= :before ORDER BY id LIMIT 1), :none)
        ORDER BY id LIMIT :count)""")
)
STATES = Statement(select(retention.c.name, retention.c.kept_from, retention.c.worked_at))
OLDEST = {
    "sessions": Statement(text("SELECT MIN(created_at) FROM sessions")),
    "links": Statement(text("SELECT MIN(created_at) FROM links")),
    "audit_events": Statement(text("SELECT MIN(at) FROM acts WHERE account_id IS NOT NULL")),
    "idempotency_keys": Statement(text("SELECT MIN(created_at) FROM idempotency")),
}
NO_EVENT = 2**62


class KeptState(msgspec.Struct, frozen=True):
    """How far a limit has come: what is older than `kept_from` is gone, and when a process last worked on it."""

    name: str
    kept_from: int | None
    worked_at: int


def claim(tx: Transaction, name: Kept, now_ms: int, every_ms: int) -> bool:
    """Take the turn to work on this. False if a process has worked on it lately."""
    return tx.change(CLAIM, {"name": name, "now": now_ms, "due": now_ms - every_ms}) == 1


def keep_turn(tx: Transaction, name: Kept, now_ms: int) -> None:
    tx.change(WORKED, {"name": name, "now": now_ms})


def keep_from(tx: Transaction, name: Kept, before_ms: int) -> None:
    """From now on, what is older may be removed."""
    tx.change(KEEP_FROM, {"name": name, "before": before_ms})


def remove_sessions(tx: Transaction, now_ms: int, idle_since_ms: int, began_ms: int, count: int) -> int:
    values = {"now": now_ms, "idle": idle_since_ms, "began": began_ms, "count": count}
    return tx.change(REMOVE_SESSIONS, values)


def remove_links(tx: Transaction, now_ms: int, count: int) -> int:
    return tx.change(REMOVE_LINKS, {"now": now_ms, "count": count})


def remove_audit_events(tx: Transaction, before_ms: int, count: int) -> int:
    """Those of accounts, the oldest first."""
    return tx.change(REMOVE_AUDIT_EVENTS, {"before": before_ms, "none": NO_EVENT, "count": count})


async def read_states(store: Store) -> dict[str, KeptState]:
    return {name: KeptState(name, *times) for name, *times in await store.rows(STATES, {})}


async def read_oldest(store: Store) -> dict[str, int | None]:
    """The time of the oldest row of each kind; None if there is none."""
    return {name: (await store.rows(statement, {}, is_long=True))[0][0] for name, statement in OLDEST.items()}
