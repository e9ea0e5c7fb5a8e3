"""A living process that another one took for dead: its requests are charged in full or end as lost, and it goes on."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.fleet.presence import HeartbeatBounds
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.store.schema import processes, reserves
from cadenza.store.store import Store
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    QUIET,
    Progress,
    comes_true,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    reserves_of,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, rows_of

WHOLE_NANO = 2500
LITTLE_NANO = 20 * WHOLE_NANO
OBSERVER = HeartbeatBounds(heartbeat_every_s=0.05, fresh_s=0.3, gap_s=10.0, dead_s=0.5)
KEY = b"k" * 32


@pytest.fixture(params=[LITTLE_NANO, DOLLAR_NANO], ids=["little", "ample"])
async def funded(store: Store, request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """The credit of the account. At the end nothing is held, no process is left, and the ledger is sound."""
    await fund(store, request.param)
    yield request.param
    assert (await money(store))[1] == 0
    assert (await rows_of(store, reserves), await rows_of(store, processes)) == ([], [])
    assert await findings(store) == []


async def test_running_requests_are_charged_from_free_credit(store: Store, funded: int) -> None:
    """In full, under a new name, and nothing stays held for them afterwards."""
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2"), make_hold("r3")])
        swept = writer.presence.name
        await sweep_process(store, swept)
        assert await money(store) == (funded, 0)
        assert await writer.end(make_outcome("r1", Usage(100, 50))) == Ended(WHOLE_NANO)
        assert await end_all(writer, [make_outcome("r2", Usage(100, 1)), make_outcome("r3")]) == [Ended(1030), Ended()]
        assert writer.presence.name != swept
        assert counted(metrics, "ledger_lost") == counted(metrics, "ledger_refused") == 0
        if funded == LITTLE_NANO:
            assert await reserves_of(store) == {}
        assert isinstance(await writer.hold(make_hold("r4")), HeldCredit)
        assert [*await reserves_of(store)] == [writer.presence.name]
        await writer.end(make_outcome("r4", Usage(100, 1)))
    assert (await money(store))[0] == funded - WHOLE_NANO - 2 * 1030


async def test_a_request_that_the_sweep_charged_for_less_is_lost(store: Store, funded: int) -> None:
    """The mark was charged: more is not, and the reply must not seem complete. The same amount is repeated."""
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        for name in ("r1", "r2"):
            writer.track(name, Progress(7))
        await writer.mark()
        assert len(await sweep_process(store, writer.presence.name)) == 2
        assert await end_all(writer, [make_outcome("r1", Usage(100, 50)), make_outcome("r2", Usage(100, 7))]) == [
            Ended(1210, is_lost=True),
            Ended(1210, is_repeated=True),
        ]
        assert (counted(metrics, "ledger_lost"), counted(metrics, "ledger_refused")) == (1, 0)
    assert (await money(store))[0] == funded - 2 * 1210


@pytest.mark.parametrize("others", [0, 1])
async def test_a_request_whose_credit_is_gone_is_lost(store: Store, others: int) -> None:
    """Another process has taken the credit meanwhile: what is left is charged, and the reply must not seem complete."""
    await fund(store, 2 * WHOLE_NANO)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await hold_all(writer, [make_hold(f"r{number}") for number in range(1 + others)])
        await sweep_process(store, writer.presence.name)
        elsewhere = make_hold("other", allowance_tokens=100)
        assert isinstance(await take(store, elsewhere), HeldCredit)
        assert await writer.end(make_outcome("r0", Usage(100, 50))) == Ended(1000, short_nano=1500, is_lost=True)
        assert counted(metrics, "ledger_lost") == 1
        for number in range(others):
            assert await writer.end(make_outcome(f"r{number + 1}")) == Ended()
    assert await money(store) == (4000, 4000)
    await sweep_process(store)
    assert (await money(store), await findings(store)) == ((4000, 0), [])


async def test_holds_of_a_swept_process_are_taken_again(store: Store, funded: int) -> None:
    """A hold that needs the store finds out, and is taken under the new name; its key is used."""
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("r1"))
        swept = writer.presence.name
        await sweep_process(store, swept)
        assert isinstance(await writer.hold(make_hold("r2", key=KEY)), HeldCredit)
        assert writer.presence.name != swept
        assert (await money(store))[1] >= 2 * WHOLE_NANO
        assert await end_all(writer, [make_outcome("r1", Usage(100, 1)), make_outcome("r2", Usage(100, 1))]) == [
            Ended(1030),
            Ended(1030),
        ]
    assert (await money(store))[0] == funded - 2060


async def test_a_single_request_that_the_sweep_charged_is_lost(store: Store, funded: int) -> None:
    """Alone in its batch it is not refused either."""
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await writer.hold(make_hold())
        writer.track("r1", Progress(7))
        await writer.mark()
        await sweep_process(store, writer.presence.name)
        assert await writer.end(make_outcome(usage=Usage(100, 50))) == Ended(1210, is_lost=True)
        assert (counted(metrics, "ledger_lost"), counted(metrics, "ledger_refused")) == (1, 0)
    assert (await money(store))[0] == funded - 1210


async def test_requests_of_several_accounts_learn_it_at_once(store: Store, funded: int) -> None:
    """Batches that are written at the same moment all find out, and none is refused."""
    names = "bcdefg"
    for account in names:
        await fund(store, funded, account)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, metrics):
        for account in names:
            await writer.hold(make_hold(account, account=account))
            writer.track(account, Progress(7))
        await writer.mark()
        await sweep_process(store, writer.presence.name)
        ends = []
        for account in names:
            ends.append(writer.end(make_outcome(account, Usage(100, 50), account=account)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*ends) == [Ended(1210, is_lost=True)] * len(names)
        assert counted(metrics, "ledger_refused") == 0
    assert [await money(store, account) for account in names] == [(funded - 1210, 0)] * len(names)


@ON_POSTGRES
async def test_a_silent_process_is_swept_and_goes_on(store: Store, url: str) -> None:
    """A process that does not beat is swept by another; when it ends its requests they are charged once, in full."""
    async with opened(url) as beside:
        await fund(store, DOLLAR_NANO)
        timing = msgspec.structs.replace(ALONE, sweep_every_s=0.05)
        async with writing(store, timing=ALONE, bounds=QUIET) as (silent, metrics):
            await hold_all(silent, [make_hold("r1"), make_hold("r2")])
            silent.track("r1", Progress(7))
            await silent.mark()
            async with writing(beside, timing=timing, bounds=OBSERVER) as (writer, _):
                assert await comes_true(lambda: money(store), becomes=(DOLLAR_NANO - 1210, 0))
                assert isinstance(await writer.hold(make_hold("o1")), HeldCredit)
                await writer.end(make_outcome("o1", Usage(100, 1)))
            assert await end_all(silent, [make_outcome("r1", Usage(100, 9)), make_outcome("r2", Usage(100, 9))]) == [
                Ended(1210, is_lost=True),
                Ended(1270),
            ]
            assert counted(metrics, "ledger_lost") == 1
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1210 - 1270 - 1030, 0), [])
        assert await rows_of(store, processes) == []
