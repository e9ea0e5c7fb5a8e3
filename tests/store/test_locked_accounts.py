"""Accounts that a session of another program has locked: however many there are, the others are served."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.ledger.writer import LedgerWriter
from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.schema import marks
from cadenza.store.store import Store, StoreUnavailable
from tests.store.aside import transaction
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    PATIENCE_S,
    QUIET,
    Progress,
    comes_true,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    mark_of,
    money,
    queue_all,
    writing,
)
from tests.store.rows import DOLLAR_NANO, rows_of

pytestmark = ON_POSTGRES

WHOLE_NANO = 2500
LITTLE_NANO = 200 * WHOLE_NANO  # near the end of a credit: nothing is kept for holds in memory
SOON_S = 10.0
ROUNDS = 5
HASTY = msgspec.structs.replace(ALONE, wait_s=1.0)
OTHERS = [f"o{number}" for number in range(3)]
BOUNDS = msgspec.structs.replace(PostgresBounds().with_waits_of(PATIENCE_S), lock_s=PostgresBounds().lock_s)


@contextlib.asynccontextmanager
async def serving_store(url: str) -> AsyncIterator[Store]:
    """The same store once more, which waits for a lock as long as a service does, and for nothing else."""
    store = PostgresStore(url, BOUNDS)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def locked_accounts(url: str, names: Iterable[str]) -> AsyncIterator[None]:
    """A session of another program locks these accounts for the block."""
    ids = ", ".join(f"'acct_{name}'" for name in names)
    async with transaction(url) as other:
        await other.rows(f"SELECT * FROM accounts WHERE id IN ({ids}) FOR UPDATE")
        yield


@pytest.mark.parametrize("count", [1, 8])
async def test_locked_accounts_delay_no_others(store: Store, url: str, count: int) -> None:
    """The others are served, and so is one whose lock ends meanwhile; what locked accounts ask for is refused soon."""
    names = [f"l{number}" for number in range(count)]
    for name in [*names, *OTHERS, "brief"]:
        await fund(store, LITTLE_NANO, name)
    async with serving_store(url) as serving, writing(serving, timing=HASTY) as (writer, _):
        await hold_all(writer, [make_hold(f"{name}-0", account=name) for name in [*names, "brief"]])
        async with locked_accounts(url, names):
            async with locked_accounts(url, ["brief"]):
                ends = [writer.end(make_outcome(f"{n}-0", Usage(100, 1), account=n)) for n in [*names, "brief"]]
                holds = await queue_all(writer, [make_hold(f"{name}-1", account=name) for name in names])
                for number in range(ROUNDS):
                    await asyncio.wait_for(serve_others(writer, number), SOON_S)
            assert await comes_true(lambda: money(store, "brief"), SOON_S, becomes=(LITTLE_NANO - 1030, 0))
            answers = await asyncio.wait_for(asyncio.gather(*ends, *holds, return_exceptions=True), SOON_S)
            assert [type(one) for one in answers if not isinstance(one, StoreUnavailable)] in ([], [Ended])
        await writer.drained()
        assert isinstance(await writer.hold(make_hold("l0-2", account="l0")), HeldCredit)
        await writer.end(make_outcome("l0-2", account="l0"))
    assert [await money(store, name) for name in names] == [(LITTLE_NANO - 1030, 0)] * count
    assert await findings(store) == []


async def serve_others(writer: LedgerWriter, number: int) -> None:
    """A request of each of the other accounts."""
    holds = [make_hold(f"{name}-{number}", account=name) for name in OTHERS]
    assert {type(held) for held in await hold_all(writer, holds)} == {HeldCredit}
    await end_all(writer, [make_outcome(f"{name}-{number}", account=name) for name in OTHERS])


async def test_a_request_of_a_locked_account_is_not_begun_on_its_reserve(rich: Store, url: str) -> None:
    """Once a charge waits for the lock, no hold is taken in memory: it could not be charged either."""
    async with serving_store(url) as serving, writing(serving, timing=HASTY, bounds=QUIET) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        async with locked_accounts(url, "a"):
            with pytest.raises(StoreUnavailable):
                await writer.end(make_outcome("r1", Usage(100, 1)))
            with pytest.raises(StoreUnavailable):
                await writer.hold(make_hold("r3"))
        await writer.drained()
        assert isinstance(await writer.hold(make_hold("r4")), HeldCredit)
        await end_all(writer, [make_outcome("r2"), make_outcome("r4")])
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


async def test_the_marks_of_a_locked_account_delay_no_others(store: Store, url: str) -> None:
    """What requests of other accounts have delivered is marked, and its own is once the lock is released."""
    async with serving_store(url) as serving, writing(serving, timing=ALONE) as (writer, _):
        for name in "abc":
            await fund(store, LITTLE_NANO, name)
            await writer.hold(make_hold(name, account=name))
            writer.track(name, Progress(7))
        async with locked_accounts(url, "b"):
            await writer.mark()
            assert [await mark_of(store, name) for name in "abc"] == [7, 0, 7]
        await writer.mark()
        assert await mark_of(store, "b") == 7
        await end_all(writer, [make_outcome(name, account=name) for name in "abc"])
    assert (await rows_of(store, marks), await findings(store)) == ([], [])


async def test_a_locked_row_of_one_account_delays_no_others(store: Store, url: str) -> None:
    """A session locks a mark: the charges of other accounts that are in the same batch are written at once."""
    async with serving_store(url) as serving, writing(serving, timing=ALONE) as (writer, _):
        for name in "abc":
            await fund(store, LITTLE_NANO, name)
            await writer.hold(make_hold(name, account=name))
            writer.track(name, Progress(7))
        await writer.mark()
        async with transaction(url) as other:
            await other.rows("SELECT * FROM marks WHERE completion_id = 'b' FOR UPDATE")
            ends = {name: writer.end(make_outcome(name, Usage(100, 1), account=name)) for name in "abc"}
            assert [await asyncio.wait_for(ends[name], SOON_S) for name in "ac"] == [Ended(1030)] * 2
            assert not ends["b"].done()
        assert await ends["b"] == Ended(1030)
    assert (await rows_of(store, marks), await findings(store)) == ([], [])
