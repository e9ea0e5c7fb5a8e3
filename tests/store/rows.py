"""Rows that the tests of the store start from, and reading tables back."""

import sqlite3
from collections import namedtuple
from typing import Any

from sqlalchemy import Table, select, text

from cadenza.core.codes import digest_key, display_prefix, make_key
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, keys
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.keys import NewKey
from cadenza.store.tables.metered import KEY, OF_REQUEST, SUMS

NOW_MS = 1_800_000_000_000
DOLLAR_NANO = 1_000_000_000
SUM_UP = (
    f"INSERT INTO usage_days ({', '.join((*KEY, *SUMS))}) SELECT {', '.join(OF_REQUEST.values())}, "
    f"{', '.join(f'CAST(SUM({sql}) AS BIGINT)' for sql in SUMS.values())} FROM usage GROUP BY "
    f"{', '.join(OF_REQUEST.values())}"
)


async def add_account(store: Store, account_id: str = "acct_a", created_at: int = NOW_MS) -> Account:
    account = Account(account_id, f"{account_id}@example.org", "forte", 0, 0, created_at)
    await store.transact(lambda tx: accounts.add(tx, account, "hash"))
    return account


async def add_key(
    store: Store,
    key_id: str = "key_a",
    *,
    account_id: str = "acct_a",
    scopes: tuple[str, ...] = (),
    created_at: int = NOW_MS,
    expires_at: int | None = None,
) -> bytes:
    """Add a key and return its digest."""
    secret = make_key()
    digest = digest_key(secret.encode())
    key = NewKey(key_id, account_id, "a name", display_prefix(secret), frozenset(scopes), created_at, expires_at)
    await store.transact(lambda tx: keys.add(tx, key, digest))
    return digest


async def rows_of(store: Store, table: Table) -> list[Any]:
    """Every row of a table as a named tuple."""
    make = namedtuple(table.name, table.c.keys())  # type: ignore[misc]  # noqa: PYI024 the columns are the table's
    return [make(*row) for row in await store.rows(Statement(select(table)), {})]


def sum_up(tx: Transaction) -> None:
    """Make the sums by day those of the metering rows, which a test has written itself."""
    tx.change(Statement(text("DELETE FROM usage_days")), {})
    tx.change(Statement(text(SUM_UP)), {})


def sum_up_file(database: sqlite3.Connection) -> None:
    """The same, in the file of a SQLite store."""
    database.execute("DELETE FROM usage_days")
    database.execute(SUM_UP)


async def run_sql(store: Store, *statements: str) -> None:
    """Run SQL as it is written, in one transaction of the store."""

    def work(tx: Transaction) -> None:
        for statement in statements:
            tx.change(Statement(text(statement)), {})

    await store.transact(work)
