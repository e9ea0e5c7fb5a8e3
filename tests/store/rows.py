"""Rows that the tests of the store start from."""

from typing import Any

from sqlalchemy import Row, Table, select

from cadenza.core.apikey import digest_key, display_prefix, make_key
from cadenza.store import accounts, keys
from cadenza.store.accounts import Account
from cadenza.store.database import Database
from cadenza.store.keys import NewKey

NOW_MS = 1_800_000_000_000
DOLLAR_NANO = 1_000_000_000


async def add_account(db: Database, account_id: str = "acct_a", created_at: int = NOW_MS) -> Account:
    account = Account(account_id, f"{account_id}@example.org", "forte", 0, 0, created_at)
    async with db.write() as conn:
        await accounts.insert(conn, account, "hash")
    return account


async def add_key(
    db: Database,
    key_id: str = "key_a",
    *,
    account_id: str = "acct_a",
    scopes: tuple[str, ...] = (),
    created_at: int = NOW_MS,
    expires_at: int | None = None,
) -> bytes:
    """The digest of the new key."""
    secret = make_key()
    digest = digest_key(secret.encode())
    key = NewKey(key_id, account_id, "a name", display_prefix(secret), frozenset(scopes), created_at, expires_at)
    async with db.write() as conn:
        await keys.insert(conn, key, digest)
    return digest


async def rows_of(db: Database, table: Table) -> list[Row[Any]]:
    async with db.read() as conn:
        return list((await conn.execute(select(table))).all())
