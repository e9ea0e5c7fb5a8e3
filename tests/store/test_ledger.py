"""Grants: an entry and the balance that moves with it, from any number of processes."""

import asyncio

import pytest
from sqlalchemy import select

from cadenza.store import accounts, ledger
from cadenza.store.database import Database
from cadenza.store.ledger import BALANCE_NANO_LIMIT
from cadenza.store.schema import entries
from tests.store.processes import run_at_once
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_account


async def grant(db: Database, amount_nano: int) -> int:
    async with db.write() as conn:
        return await conn.run_sync(ledger.grant, "acct_a", amount_nano, "a gift", NOW_MS)


async def balance_and_entries(db: Database) -> tuple[int, list[int]]:
    async with db.read() as conn:
        account = await accounts.find_by_email(conn, "acct_a@example.org")
        amounts = (await conn.execute(select(entries.c.amount_nano).order_by(entries.c.id))).scalars().all()
    assert account is not None
    return account.balance_nano, list(amounts)


async def test_a_grant_appends_and_moves_the_balance(db: Database) -> None:
    """Each grant returns the new balance and leaves one entry, with its words and time."""
    await add_account(db)
    assert [await grant(db, DOLLAR_NANO), await grant(db, 2)] == [DOLLAR_NANO, DOLLAR_NANO + 2]
    assert await balance_and_entries(db) == (DOLLAR_NANO + 2, [DOLLAR_NANO, 2])
    async with db.read() as conn:
        first = (await conn.execute(select(entries).order_by(entries.c.id).limit(1))).one()
    assert (first.account_id, first.kind, first.request_id, first.note) == ("acct_a", "grant", None, "a gift")
    assert first.created_at == NOW_MS


async def test_a_grant_touches_its_own_account_only(db: Database) -> None:
    """Another account's balance stays as it is."""
    await add_account(db)
    await add_account(db, "acct_b")
    await grant(db, DOLLAR_NANO)
    async with db.read() as conn:
        assert [account.balance_nano for account in await accounts.list_all(conn)] == [DOLLAR_NANO, 0]


@pytest.mark.parametrize("amount_nano", [0, -1, BALANCE_NANO_LIMIT])
async def test_an_impossible_grant_is_a_fault_of_ours(db: Database, amount_nano: int) -> None:
    """Nothing, less than nothing and the limit itself are not granted."""
    await add_account(db)
    with pytest.raises(AssertionError):
        await grant(db, amount_nano)
    assert await balance_and_entries(db) == (0, [])


async def test_a_balance_stays_below_its_limit(db: Database) -> None:
    """The largest balance is one below the limit; the grant that would reach it leaves no trace."""
    await add_account(db)
    assert await grant(db, BALANCE_NANO_LIMIT - 1) == BALANCE_NANO_LIMIT - 1
    with pytest.raises(AssertionError):
        await grant(db, 1)
    assert await balance_and_entries(db) == (BALANCE_NANO_LIMIT - 1, [BALANCE_NANO_LIMIT - 1])


async def test_an_unknown_account_gets_nothing(db: Database) -> None:
    """A grant to nobody leaves no entry."""
    with pytest.raises(AssertionError, match="no such account"):
        await grant(db, 1)


async def test_cancelled_grants_are_whole_or_not_at_all(db: Database) -> None:
    """Wherever a cancellation strikes, the entries still sum to the balance, and the store goes on."""
    await add_account(db)
    for steps in range(0, 2000, 50):
        task = asyncio.create_task(grant(db, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    balance_nano, amounts = await balance_and_entries(db)
    assert balance_nano == sum(amounts)
    assert await grant(db, 1) == balance_nano + 1


async def test_grants_of_several_processes_add_up(db: Database, url: str) -> None:
    """Four processes that write without a pause lose nothing and are never told that the store is locked."""
    await add_account(db)
    work = ("grant", url, "acct_a", "3", "50")
    balances = await run_at_once(work, work, work, work)
    assert max(int(balance) for balance in balances) == 600
    assert await balance_and_entries(db) == (600, [3] * 200)
