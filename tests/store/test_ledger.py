"""Grants: each adds an entry and moves the balance by it, from any number of processes."""

import asyncio

import pytest

from cadenza.ledger import credit
from cadenza.ledger.credit import BALANCE_NANO_LIMIT
from cadenza.store.schema import entries
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from tests.store.processes import run_at_once
from tests.store.rows import NOW_MS, add_account, rows_of


async def grant(store: Store, amount_nano: int) -> int:
    return await store.transact(lambda tx: credit.grant(tx, "acct_a", amount_nano, "a gift", NOW_MS))


async def balance_and_entries(store: Store) -> tuple[int, list[int]]:
    account = await accounts.get_by_email(store, "acct_a@example.org")
    assert account is not None
    return account.balance_nano, [entry.amount_nano for entry in sorted(await rows_of(store, entries))]


@pytest.mark.parametrize("amount_nano", [0, -1, BALANCE_NANO_LIMIT])
async def test_an_impossible_grant_is_an_assertion_error(store: Store, amount_nano: int) -> None:
    """Zero, a negative amount and the limit itself are not granted."""
    await add_account(store)
    with pytest.raises(AssertionError):
        await grant(store, amount_nano)
    assert await balance_and_entries(store) == (0, [])


async def test_a_balance_stays_below_its_limit(store: Store) -> None:
    """The largest balance is one below the limit; the grant that would reach it changes nothing."""
    await add_account(store)
    assert await grant(store, BALANCE_NANO_LIMIT - 1) == BALANCE_NANO_LIMIT - 1
    with pytest.raises(AssertionError):
        await grant(store, 1)
    assert await balance_and_entries(store) == (BALANCE_NANO_LIMIT - 1, [BALANCE_NANO_LIMIT - 1])


async def test_an_unknown_account_gets_nothing(store: Store) -> None:
    """A grant to an account that does not exist is an error."""
    with pytest.raises(AssertionError, match="no such account"):
        await grant(store, 1)


async def test_a_cancelled_grant_is_made_whole_or_not_at_all(store: Store) -> None:
    """A grant cancelled at any point leaves entries that sum to the balance, and the store keeps working."""
    await add_account(store)
    for steps in range(0, 2000, 50):
        task = asyncio.create_task(grant(store, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    last_nano = await grant(store, 1)  # queued after every grant that still runs though its caller was cancelled
    balance_nano, amounts = await balance_and_entries(store)
    assert balance_nano == sum(amounts) == last_nano


async def test_grants_of_several_processes_add_up(store: Store, url: str) -> None:
    """Four processes that write without a pause lose nothing and never fail because the store is locked."""
    await add_account(store)
    work = ("grant", url, "acct_a", "3", "50")
    balances = await run_at_once(work, work, work, work)
    assert max(int(balance) for balance in balances) == 600
    assert await balance_and_entries(store) == (600, [3] * 200)
