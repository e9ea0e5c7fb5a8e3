"""Reports on both databases: nothing else waits for them, an account has one at a time, they end with their caller."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from sqlalchemy import text

from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.report_turns import REPORTS_MAX, WAITING_MAX, ReportTurns
from cadenza.store.statements import Statement
from cadenza.store.store import ReportsBusy, Row, Store
from tests.store.aside import aside

WAIT_S = 60.0
CONNECTIONS = 8  # of Postgres, for everything else
ENDLESS = Statement(text("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n FROM c) SELECT COUNT(*) FROM c"))
ONE = Statement(text("SELECT 1"))
COUNT_ENDLESS = """
    SELECT COUNT(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND query LIKE 'WITH RECURSIVE%'"""


@contextlib.asynccontextmanager
async def endless(store: Store, accounts: Sequence[str]) -> AsyncIterator[list["asyncio.Task[list[Row]]"]]:
    """Reports that run, or wait for their turn, until the block ends."""
    tasks = [asyncio.create_task(store.report(ENDLESS, {}, account_id)) for account_id in accounts]
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.sleep(0)
            yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_nothing_else_waits_for_reports(store: Store) -> None:
    """While as many reports run as can, and more wait, a row, rows and transactions are served."""
    async with endless(store, [f"acct_{number}" for number in range(REPORTS_MAX + CONNECTIONS)]):
        assert await store.row(ONE, {}) == (1,)
        assert await asyncio.gather(*(store.rows(ONE, {}) for _ in range(CONNECTIONS))) == [[(1,)]] * CONNECTIONS
        assert (
            await asyncio.gather(*(store.transact(lambda tx: tx.row(ONE, {})) for _ in range(CONNECTIONS)))
            == [(1,)] * CONNECTIONS
        )


async def test_an_account_has_one_report_at_a_time(store: Store) -> None:
    """Its second report waits for the first to end; that of another account does not."""
    async with endless(store, ["acct_a"]) as [first]:
        second = asyncio.create_task(store.report(ONE, {}, "acct_a"))
        assert await store.report(ONE, {}, "acct_b") == [(1,)]
        assert not second.done()
        first.cancel()
        assert await second == [(1,)]


async def test_the_queue_of_an_account_is_bounded(store: Store) -> None:
    """One more than may wait is refused at once; a place that a cancelled one leaves is free again."""
    async with endless(store, ["acct_a"] * (1 + WAITING_MAX)) as tasks:
        refused = asyncio.create_task(store.report(ONE, {}, "acct_a"))
        await asyncio.sleep(0)
        assert isinstance(refused.exception(), ReportsBusy)
        tasks[-1].cancel()
        await asyncio.wait([tasks[-1]])
        waiting = asyncio.create_task(store.report(ONE, {}, "acct_a"))
        for task in tasks:
            task.cancel()
        assert await waiting == [(1,)]


async def test_reports_of_operators_leave_a_place_for_those_of_accounts(store: Store) -> None:
    """However many reports without an account are asked for, the report of an account runs."""
    async with endless(store, [""] * (2 * REPORTS_MAX)):
        assert await store.report(ONE, {}, "acct_a") == [(1,)]


async def test_a_report_ends_with_its_caller(store: Store, url: str) -> None:
    """When the callers of all reports are cancelled, the next ones run, and Postgres runs no statement any more."""
    for _ in range(2):
        async with endless(store, [f"acct_{number}" for number in range(REPORTS_MAX)]):
            if isinstance(store, PostgresStore):
                async with aside(url) as other:
                    while await other.rows(COUNT_ENDLESS) != [(REPORTS_MAX,)]:
                        pass
    if isinstance(store, PostgresStore):
        async with aside(url) as other:
            assert await other.rows(COUNT_ENDLESS) == [(0,)]
    async with asyncio.timeout(WAIT_S):
        found = await asyncio.gather(*(store.report(ONE, {}, f"acct_{number}") for number in range(REPORTS_MAX)))
    assert found == [[(1,)]] * REPORTS_MAX


async def test_a_report_waits_for_a_bounded_time() -> None:
    """One whose turn does not come is refused, and the next one gets it."""
    turns = ReportTurns(wait_s=0.01)
    for _ in range(2):
        async with turns.turn("acct_a"):
            with pytest.raises(ReportsBusy):
                async with turns.turn("acct_a"):
                    raise AssertionError("two at once")
    async with turns.turn("acct_a"):
        pass
