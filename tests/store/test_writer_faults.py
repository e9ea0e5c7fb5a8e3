"""The writer on a failing store: holds that need it fail, charges wait and are written once, and nothing stays held."""

import asyncio
import contextlib
import io
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.ledger.committer import BATCH_MAX
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.address import open_store
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreBusy, StoreUnavailable
from tests.postgres import Postgres
from tests.store.aside import DROP_OTHERS, aside, transaction
from tests.store.lossy import lossy_line
from tests.store.moves import (
    ALONE,
    MARKS_AT_ONCE,
    ON_POSTGRES,
    PATIENCE_S,
    QUIET,
    STALE,
    Progress,
    Steps,
    come_to_wait,
    cost_of,
    counted,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    queue_all,
    reserves_of,
    sweep_process,
    writing,
)
from tests.store.rows import DOLLAR_NANO

HASTY_S = 0.3  # how long a hasty store waits for a lock
SOON_S = 20.0
WHOLE_NANO = 2500
LITTLE_NANO = 200 * WHOLE_NANO  # near the end of a credit: nothing is kept for holds in memory
KEY = b"k" * 32


class ListeningLog(io.StringIO):
    """A log that runs an action when a line contains certain words."""

    def __init__(self, words: str, action: Callable[[], object]) -> None:
        super().__init__()
        self._words = words
        self._action = action

    def write(self, line: str) -> int:
        if self._words in line:
            self._action()
        return super().write(line)


@asynccontextmanager
async def locked(url: str) -> AsyncIterator[None]:
    """Another process holds the write lock for the block."""
    async with transaction(url) as other:
        if not url.startswith("sqlite"):
            await other.execute("LOCK TABLE accounts IN EXCLUSIVE MODE")
        yield


@asynccontextmanager
async def hasty_store(url: str) -> AsyncIterator[Store]:
    """The same store once more, which soon gives up waiting for a lock, and for nothing else."""
    patient = PostgresBounds().with_waits_of(PATIENCE_S)
    hasty = (
        open_store(url, HASTY_S)
        if url.startswith("sqlite")
        else PostgresStore(url, msgspec.structs.replace(patient, lock_s=HASTY_S))
    )
    try:
        yield hasty
    finally:
        await hasty.close()


async def test_a_locked_store_fails_holds_and_keeps_outcomes(store: Store, url: str) -> None:
    """Holds fail and change nothing; outcomes are retried until the lock is released, and are then written once."""
    await fund(store, LITTLE_NANO)
    async with hasty_store(url) as hasty, writing(hasty, timing=ALONE) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        async with locked(url):
            ends = [writer.end(make_outcome("r1", Usage(100, 1))), writer.end(make_outcome("r2", Usage(100, 50)))]
            for attempt in range(3):
                with pytest.raises(StoreUnavailable):
                    await writer.hold(make_hold(f"late{attempt}"))
            assert [end.done() for end in ends] == [False, False]
        assert await asyncio.gather(*ends) == [Ended(1030), Ended(WHOLE_NANO)]
        assert counted(metrics, "ledger_retries") >= 3
        assert isinstance(await writer.hold(make_hold("r3")), HeldCredit)
        await writer.end(make_outcome("r3"))
    assert [await cost_of(store, f"late{attempt}") for attempt in range(3)] == [None] * 3
    assert (await money(store), await findings(store)) == ((LITTLE_NANO - 1030 - WHOLE_NANO, 0), [])


async def test_a_reserve_lets_requests_through_while_the_store_stalls(rich: Store, url: str) -> None:
    """Holds that the reserve covers are answered without the store; their charges are written when it answers again."""
    async with hasty_store(url) as hasty, writing(hasty, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("r0"))
        async with locked(url):
            answers = [await writer.hold(make_hold(f"r{number}")) for number in range(1, 5)]
            ends = [writer.end(make_outcome(f"r{number}", Usage(100, 1))) for number in range(5)]
        assert [type(answer) for answer in answers] == [HeldCredit] * 4
        assert await asyncio.gather(*ends) == [Ended(1030)] * 5
    assert await money(rich) == (DOLLAR_NANO - 5 * 1030, 0)


@ON_POSTGRES
async def test_a_process_that_is_not_fresh_asks_the_store_for_every_hold(rich: Store, url: str) -> None:
    """It may have been swept: a hold that its reserve covers fails while the store does not answer."""
    async with hasty_store(url) as hasty, writing(hasty, timing=ALONE, bounds=STALE) as (writer, _):
        await writer.hold(make_hold("r0"))
        assert (await reserves_of(rich))[writer.presence.name] > 2 * WHOLE_NANO
        async with locked(url):
            with pytest.raises(StoreUnavailable):
                await writer.hold(make_hold("late"))
        assert isinstance(await writer.hold(make_hold("r1")), HeldCredit)
        await asyncio.gather(*(writer.end(make_outcome(name, Usage(100, 1))) for name in ("r0", "r1")))
    assert await money(rich) == (DOLLAR_NANO - 2060, 0)


async def test_a_hold_behind_a_full_batch_fails_too(store: Store, url: str) -> None:
    """When the store does not take a full batch of outcomes, a hold behind it fails at once."""
    await fund(store, LITTLE_NANO)
    names = [f"r{number}" for number in range(BATCH_MAX)]
    async with hasty_store(url) as hasty, writing(hasty, timing=ALONE) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        async with locked(url):
            ends = [writer.end(make_outcome(name)) for name in names]
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(writer.hold(make_hold("late", key=KEY)), SOON_S)
        assert await asyncio.gather(*ends) == [Ended()] * BATCH_MAX
    assert (await money(store), await findings(store)) == ((LITTLE_NANO, 0), [])


async def test_stopping_on_a_locked_store_loses_nothing(store: Store, url: str) -> None:
    """The writer stops in bounded time, and what it could not write is freed once."""
    await fund(store, LITTLE_NANO)
    async with hasty_store(url) as hasty, asyncio.timeout(SOON_S), contextlib.AsyncExitStack() as stack:
        writer, _ = await stack.enter_async_context(writing(hasty, timing=ALONE))
        await writer.hold(make_hold())
        async with locked(url):
            writer.end(make_outcome(usage=Usage(100, 1)))
            await stack.aclose()
    assert await money(store) == (LITTLE_NANO, WHOLE_NANO)
    await sweep_process(store, writer.presence.name)
    assert (await money(store), await findings(store)) == ((LITTLE_NANO, 0), [])


@ON_POSTGRES
async def test_a_charge_beyond_the_hold_that_waited_for_a_lock_is_not_lost(store: Store, url: str) -> None:
    """A charge that was set aside takes what the account has, as at any other time, and the reply is complete."""
    await fund(store, WHOLE_NANO)
    async with writing(store, timing=ALONE) as (writer, metrics):
        await writer.hold(make_hold())
        async with transaction(url) as other:
            await other.rows("SELECT * FROM accounts FOR UPDATE")
            ending = writer.end(make_outcome(usage=Usage(100, 60)))
            assert await come_to_wait(store, 1)
        assert await ending == Ended(WHOLE_NANO, short_nano=300)
        assert counted(metrics, "ledger_lost") == 0
    assert (await money(store), await findings(store)) == ((0, 0), [])


async def test_a_caller_cancelled_while_its_hold_fails_is_cancelled(sqlite_store: SqliteStore) -> None:
    """A task that is cancelled between the failure and its delivery ends as cancelled."""
    await fund(sqlite_store, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_store.path}"
    leaving: list[asyncio.Task[object]] = []

    def leave() -> None:
        leaving[0].cancel()

    log = ListeningLog("did not take a batch", leave)
    async with hasty_store(url) as hasty, writing(hasty, log_to=log) as (writer, _), locked(url):
        leaving.append(asyncio.create_task(writer.hold(make_hold())))
        await asyncio.wait(leaving)
    assert leaving[0].cancelled()


async def test_a_lock_while_a_batch_is_written_one_by_one_loses_nothing(sqlite_store: SqliteStore) -> None:
    """When the store fails in the middle of a batch that is written one by one, the rest waits and is written."""
    await fund(sqlite_store, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_store.path}"
    refused = make_hold("bad", key=KEY, started_at=2**63)
    with contextlib.closing(sqlite3.connect(str(sqlite_store.path), isolation_level=None)) as other:
        steps = Steps()
        async with hasty_store(url) as hasty, writing(hasty, steps, timing=ALONE) as (writer, _):
            await hold_all(writer, [make_hold("r1"), make_hold("r2")])
            queued = await queue_all(writer, [refused])
            ends = [writer.end(make_outcome("r1", Usage(100, 1))), writer.end(make_outcome("r2", Usage(100, 1)))]
            steps.actions["ledger_commit"] = [
                lambda: None,  # the batch, which is refused
                lambda: None,  # the refused hold, alone
                lambda: other.execute("BEGIN IMMEDIATE"),  # the first outcome, alone
                lambda: other.execute("ROLLBACK"),  # and again
            ]
            (refusal,) = await asyncio.gather(*queued, return_exceptions=True)
            done, _ = await asyncio.wait(ends, timeout=SOON_S)
    assert isinstance(refusal, OverflowError)
    assert [end.result() for end in done] == [Ended(1030), Ended(1030)]
    assert (await money(sqlite_store), await findings(sqlite_store)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_a_mistake_after_a_commit_fails_its_callers_only(rich: Store) -> None:
    """An invariant that is broken in memory stops neither the writer nor later requests, and nothing stays held."""
    steps, log = Steps(ledger_committed=[partial(dict[str, int]().__getitem__, "nothing")]), io.StringIO()
    async with writing(rich, steps, log, timing=ALONE, bounds=QUIET) as (writer, _):
        with pytest.raises(KeyError):
            await writer.hold(make_hold("r1"))
        assert isinstance(await writer.hold(make_hold("r2")), HeldCredit)
        assert await writer.end(make_outcome("r2", Usage(100, 1))) == Ended(1030)
    assert "internal error" in log.getvalue()
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


async def test_an_account_that_does_not_exist_is_refused(rich: Store) -> None:
    """A move of it fails at once, and the others of its batch are made."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        wanted = [writer.hold(make_hold("r1")), writer.hold(make_hold("r2", account="nobody"))]
        held, refusal = await asyncio.gather(*wanted, return_exceptions=True)
        assert isinstance(held, HeldCredit)
        assert isinstance(refusal, AssertionError)
        await writer.end(make_outcome("r1"))
    assert await money(rich) == (DOLLAR_NANO, 0)


@ON_POSTGRES
async def test_an_outcome_whose_commit_was_not_confirmed_is_charged_once(
    store: Store, url: str, postgres: Postgres, tmp_path: Path
) -> None:
    """The connection is lost between the commit and its answer: the retry finds the outcome already written."""
    async with lossy_line(postgres, tmp_path) as line:
        await fund(store, DOLLAR_NANO)
        async with (
            opened(line.url_of(url)) as far,
            writing(far, timing=ALONE, bounds=QUIET) as (writer, metrics),
        ):
            await writer.hold(make_hold())
            line.lose_next_commit()
            assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(1030, is_repeated=True)
            assert line.lost.is_set()
            assert counted(metrics, "ledger_retries") == 1
            before = await reserves_of(store)
            held = 0
            while counted(metrics, "ledger_commits") == 2:  # until the reserve that the memory knows is used up
                await writer.hold(make_hold(f"h{held}"))
                held += 1
            assert held - 1 == before[writer.presence.name] // WHOLE_NANO
            await asyncio.gather(*(writer.end(make_outcome(f"h{number}")) for number in range(held)))
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])


@ON_POSTGRES
@pytest.mark.parametrize("key", [None, KEY])
async def test_a_hold_whose_commit_was_not_confirmed_is_released(
    store: Store, url: str, postgres: Postgres, tmp_path: Path, key: bytes | None
) -> None:
    """A hold that failed because its answer was lost, but was taken, leaves no credit held and its key free."""
    async with lossy_line(postgres, tmp_path) as line:
        await fund(store, WHOLE_NANO)
        async with opened(line.url_of(url)) as far, writing(far, timing=ALONE, bounds=QUIET) as (writer, _):
            line.lose_next_commit()
            with pytest.raises(StoreUnavailable):
                await writer.hold(make_hold("r1", key=key))
            assert line.lost.is_set()
            await writer.drained()
            assert isinstance(await writer.hold(make_hold("r2", key=key)), HeldCredit)
            await writer.end(make_outcome("r2"))
        assert (await money(store), await findings(store)) == ((WHOLE_NANO, 0), [])


@ON_POSTGRES
async def test_a_locked_account_delays_only_its_own_moves(store: Store, url: str) -> None:
    """Its holds fail within about the lock timeout; other accounts go on; its charges are written after the lock."""
    for account in "ab":
        await fund(store, LITTLE_NANO, account)
    async with hasty_store(url) as hasty, writing(hasty, timing=ALONE) as (writer, metrics):
        await hold_all(writer, [make_hold("a1"), make_hold("b1", account="b")])
        async with transaction(url) as other:
            await other.rows("SELECT * FROM accounts WHERE id = 'acct_a' FOR UPDATE")
            ending = writer.end(make_outcome("a1", Usage(100, 1)))
            began_s = time.monotonic()
            [refused] = await queue_all(writer, [make_hold("a2")])
            assert await writer.end(make_outcome("b1", Usage(100, 1), account="b")) == Ended(1030)
            for number in range(2, 6):
                assert isinstance(await writer.hold(make_hold(f"b{number}", account="b")), HeldCredit)
                await writer.end(make_outcome(f"b{number}", Usage(100, 1), account="b"))
            with pytest.raises(StoreBusy):
                await refused
            assert time.monotonic() - began_s < SOON_S
            assert not ending.done()
        assert await ending == Ended(1030)
        assert isinstance(await writer.hold(make_hold("a3")), HeldCredit)
        await writer.end(make_outcome("a3"))
        assert counted(metrics, "ledger_lost") == 0
    assert [await money(store), await money(store, "b")] == [(LITTLE_NANO - 1030, 0), (LITTLE_NANO - 5150, 0)]
    assert await findings(store) == []


@ON_POSTGRES
async def test_a_dropped_connection_loses_no_outcome(rich: Store, url: str) -> None:
    """Postgres drops every connection: the next outcome is retried and written once."""
    async with writing(rich) as (writer, _):
        await writer.hold(make_hold())
        async with aside(url) as other:
            await other.rows(DROP_OTHERS)
        assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(1030)
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


@ON_POSTGRES
async def test_a_value_that_postgres_refuses_fails_alone(rich: Store) -> None:
    """A text that Postgres cannot store fails that outcome only; the store does not count as unavailable."""
    async with writing(rich) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        unfit = msgspec.structs.replace(make_outcome("r1"), model="no\0body")
        ends = [writer.end(unfit), writer.end(make_outcome("r2", Usage(100, 1)))]
        await asyncio.wait(ends, timeout=SOON_S)
        assert (counted(metrics, "ledger_refused"), counted(metrics, "ledger_retries")) == (1, 0)
        assert isinstance(ends[0].exception(), Exception)
    assert ends[1].result() == Ended(1030)
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


@ON_POSTGRES
async def test_writers_that_meet_on_several_accounts_do_not_deadlock(store: Store, url: str) -> None:
    """Batches that name the same accounts in opposite orders, while one of them is locked, are all written."""
    async with opened(url, SOON_S) as near, opened(url, SOON_S) as far:
        for account in "abc":
            await fund(store, LITTLE_NANO, account)
        async with writing(near, timing=ALONE) as (one, one_metrics), writing(far, timing=ALONE) as (two, two_metrics):
            async with transaction(url) as locking:
                await locking.rows("SELECT * FROM accounts WHERE id = 'acct_c' FOR UPDATE")
                queued = await queue_all(one, [make_hold(f"near_{name}", account=name) for name in "acb"])
                queued += await queue_all(two, [make_hold(f"far_{name}", account=name) for name in "bca"])
                assert await come_to_wait(store, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert [type(answer) for answer in answers] == [HeldCredit] * 6
            assert [counted(metrics, "ledger_retries") for metrics in (one_metrics, two_metrics)] == [0, 0]
        assert await findings(store) == []


@ON_POSTGRES
async def test_writers_that_meet_on_one_idempotency_key_do_not_deadlock(store: Store, url: str) -> None:
    """Both wait for the account: one of them gets the key, and the other its ids."""
    async with opened(url, SOON_S) as near, opened(url, SOON_S) as far:
        await fund(store, LITTLE_NANO)
        async with writing(near, timing=ALONE) as (one, one_metrics), writing(far, timing=ALONE) as (two, two_metrics):
            async with transaction(url) as locking:
                await locking.rows("SELECT * FROM accounts FOR UPDATE")
                queued = await queue_all(one, [make_hold("r1"), make_hold("r2", key=KEY)])
                assert await come_to_wait(store, 1)
                queued += await queue_all(two, [make_hold("r3", key=KEY)])
                assert await come_to_wait(store, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["HeldCredit", "HeldCredit", "Repeated"]
            assert [counted(metrics, "ledger_retries") for metrics in (one_metrics, two_metrics)] == [0, 0]
        assert await findings(store) == []


@ON_POSTGRES
async def test_marks_and_outcomes_do_not_deadlock(rich: Store, url: str) -> None:
    """Requests that end while their marks are written are settled at the first try, and leave no mark."""
    log = io.StringIO()
    async with (
        opened(url, SOON_S) as patient,
        writing(patient, log_to=log, timing=MARKS_AT_ONCE) as (writer, metrics),
    ):
        progress = Progress(3)
        for name in ("r1", "r2"):
            await writer.hold(make_hold(name))
            writer.track(name, progress)
        await writer.mark()
        async with transaction(url) as locking:
            await locking.rows("SELECT * FROM marks WHERE completion_id = 'r1' FOR UPDATE")
            progress.delivered_tokens = 5
            assert await come_to_wait(rich, 1)  # the marks, for r1
            ends = [writer.end(make_outcome(name, Usage(100, 5))) for name in ("r2", "r1")]
            await come_to_wait(rich, 2, timeout_s=1.0)  # the outcomes, if they wait for the same lock
        assert await asyncio.gather(*ends) == [Ended(1150), Ended(1150)]
        assert counted(metrics, "ledger_retries") == 0
        assert '"level":"warning"' not in log.getvalue()
