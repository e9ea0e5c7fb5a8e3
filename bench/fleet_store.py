"""Many accounts with credit and a key each, made by the code of control/, in any store."""

import asyncio
import os
import time
from pathlib import Path

import msgspec

from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.money.credit import give_credit
from cadenza.core.records import COMMAND_LINE
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.store import Store
from cadenza.store.tables import accounts

CREDIT_NANO = 10**14


class Accounts(msgspec.Struct, frozen=True):
    """The secret key of each account."""

    keys: tuple[str, ...]


def make_accounts(store_url: str, home: Path, number: int) -> Accounts:
    """Migrate the store and add so many accounts. A relative path in the address is below `home`."""
    before = Path.cwd()
    os.chdir(home)
    try:
        return asyncio.run(_make_accounts(store_url, number))
    finally:
        os.chdir(before)


async def _make_accounts(store_url: str, number: int) -> Accounts:
    store, now_ms = open_store(store_url), time.time_ns() // 1_000_000
    try:
        await migrate(store)
        email = "bench-0@example.org"
        first = await create_account(store, email, CREDIT_NANO, "forte", now_ms)
        emails = [first.email, *[await _copy_account(store, first, index) for index in range(1, number)]]
        return Accounts(
            tuple(
                [
                    (await create_key(store, await get_owner(store, email), KeyOrder("bench"), now_ms))[0]
                    for email in emails
                ]
            )
        )
    finally:
        await store.close()


async def _copy_account(store: Store, first: accounts.Account, index: int) -> str:
    """An account with credit of its own and the password of the first: hashing one takes a tenth of a second."""
    email, id_ = f"bench-{index}@example.org", f"acct_bench_{index:08d}"
    found = await accounts.get_with_password(store, first.email)
    assert found
    account = msgspec.structs.replace(first, id=id_, email=email, balance_nano=0, held_nano=0)
    await store.transact(lambda tx: accounts.add(tx, account, found[1]))
    await give_credit(store, email, CREDIT_NANO, "bench", first.created_at, COMMAND_LINE)
    return email
