"""Accounts with the operator's role, straight from the store."""

import contextlib
import sqlite3

from tests.service import Service

WAIT_S = 60.0


def make_operator(service: Service, email: str) -> None:
    with contextlib.closing(sqlite3.connect(service.store, timeout=WAIT_S)) as store, store:
        store.execute("UPDATE accounts SET is_operator = TRUE WHERE email = ?", (email,))


def account_id_of(service: Service, email: str) -> str:
    return str(service.ledger.query("SELECT id FROM accounts WHERE email = ?", email)[0]["id"])


def balance_nano(service: Service, email: str) -> int:
    return int(service.ledger.query("SELECT balance_nano FROM accounts WHERE email = ?", email)[0]["balance_nano"])


def audit_events_of(service: Service, email: str) -> list[tuple[str, str, str]]:
    """Actor, name and detail of each audit event of the site that concerns an account, oldest first."""
    rows = service.ledger.query(
        "SELECT c.actor, c.event, c.detail FROM audit_events c JOIN accounts a ON a.id = c.account_id "
        "WHERE a.email = ? AND c.actor <> 'command line' ORDER BY c.id",
        email,
    )
    return [(row["actor"], row["event"], row["detail"]) for row in rows]
