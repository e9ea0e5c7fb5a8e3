"""Accounts and links straight from the store and the command line of a running service."""

import contextlib
import sqlite3

from tests.cli.program import run_here
from tests.migrated import STORE_WAIT_S
from tests.service import Service

DEFAULT_URL = "http://127.0.0.1:8080"  # of the links that the command line prints


def change_store(service: Service, sql: str, *rows: tuple[object, ...]) -> None:
    """Run a statement for each row of its values."""
    with contextlib.closing(sqlite3.connect(service.store, timeout=STORE_WAIT_S)) as store, store:
        store.executemany(sql, rows)


def make_operator(service: Service, email: str) -> None:
    change_store(service, "UPDATE accounts SET is_operator = TRUE WHERE email = ?", (email,))


def path_of_link(service: Service, *words: str) -> str:
    """The path of a link that the command line makes."""
    return run_here(service.folder, "account", "link", *words).stdout.strip().removeprefix(DEFAULT_URL)


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
