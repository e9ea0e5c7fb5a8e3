"""A store of SQLite, and an account in it."""

import pytest

from cadenza.control.account.accounts import NewAccount, add_account
from cadenza.store.store import Store
from cadenza.store.tables.accounts import Account
from tests.passwords import cheap_hash
from tests.unit.control.conftest import store

__all__ = ["store"]
NOW_MS = 1_800_000_000_000
EMAIL = "owner@example.org"
PASSWORD = "correct horse"


async def make_account(store: Store, email: str = EMAIL) -> Account:
    """Its password costs little to check."""
    new = NewAccount(email, cheap_hash(PASSWORD))
    return await store.transact(lambda tx: add_account(tx, new, None, NOW_MS))


@pytest.fixture
async def account(store: Store) -> Account:
    return await make_account(store)
