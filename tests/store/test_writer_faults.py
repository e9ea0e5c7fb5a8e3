"""The writer on a failing store: holds fail, outcomes wait and are written once, and no hold stays open."""

import asyncio
import contextlib
import io
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.store.ledger import Ended, Held
from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from cadenza.store.writer import BATCH_MAX
from tests.postgres import Postgres
from tests.store.aside import DROP_OTHERS, aside, transaction
from tests.store.lossy import lossy_line
from tests.store.moves import (
    MARKS_AT_ONCE,
    Progress,
    Steps,
    come_to_wait,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    postgres_store,
    queue_all,
    state_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO

HASTY_S = 0.3  # how long a store of these tests waits for a lock
SOON_S = 5.0
WHOLE_NANO = 2500


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


async def test_a_locked_store_fails_holds_and_keeps_outcomes(store: Store, url: str) -> None:
    """Holds fail and change nothing; outcomes are retried until the lock is released, and are then written once."""
    await fund(store, DOLLAR_NANO)
    async with opened(url, HASTY_S) as hasty, writing(hasty) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        async with locked(url):
            ends = [writer.end(make_outcome("r1", Usage(100, 1))), writer.end(make_outcome("r2"))]
            for attempt in range(3):
                with pytest.raises(StoreUnavailable):
                    await writer.hold(make_hold(f"late{attempt}"))
            assert [end.done() for end in ends] == [False, False]
        assert await asyncio.gather(*ends) == [Ended(True, 1030), Ended(True)]
        assert counted(metrics, "ledger_retries") >= 3
        assert isinstance(await writer.hold(make_hold("r3")), Held)
        await writer.end(make_outcome("r3"))
    assert [await state_of(store, f"late{attempt}") for attempt in range(3)] == [None] * 3
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_hold_behind_a_full_batch_fails_too(store: Store, url: str) -> None:
    """When the store does not take a full batch of outcomes, a hold behind it fails at once."""
    await fund(store, DOLLAR_NANO)
    names = [f"r{number}" for number in range(BATCH_MAX)]
    async with opened(url, HASTY_S) as hasty, writing(hasty) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        async with locked(url):
            ends = [writer.end(make_outcome(name)) for name in names]
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(writer.hold(make_hold("late")), SOON_S)
        assert await asyncio.gather(*ends) == [Ended(True)] * BATCH_MAX
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


async def test_stopping_on_a_locked_store_loses_nothing(store: Store, url: str) -> None:
    """The writer stops in bounded time; the next one ends, once, what it could not write."""
    await fund(store, DOLLAR_NANO)
    async with opened(url, HASTY_S) as hasty, asyncio.timeout(SOON_S), contextlib.AsyncExitStack() as stack:
        writer, _ = await stack.enter_async_context(writing(hasty))
        await writer.hold(make_hold())
        async with locked(url):
            writer.end(make_outcome(usage=Usage(100, 1)))
            await stack.aclose()
    assert await money(store) == (DOLLAR_NANO, WHOLE_NANO)
    async with writing(store):
        assert await money(store) == (DOLLAR_NANO, 0)
    assert await findings(store) == []


async def test_a_caller_cancelled_while_its_hold_fails_is_cancelled(sqlite_store: SqliteStore) -> None:
    """A task that is cancelled between the failure and its delivery ends as cancelled."""
    await fund(sqlite_store, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_store.path}"
    leaving: list[asyncio.Task[object]] = []

    def leave() -> None:
        leaving[0].cancel()

    log = ListeningLog("did not take a batch", leave)
    async with opened(url, HASTY_S) as hasty, writing(hasty, log_to=log) as (writer, _), locked(url):
        leaving.append(asyncio.create_task(writer.hold(make_hold())))
        await asyncio.wait(leaving)
    assert leaving[0].cancelled()


async def test_a_lock_while_a_batch_is_written_one_by_one_loses_nothing(sqlite_store: SqliteStore) -> None:
    """When the store fails in the middle of a batch that is written one by one, the rest waits and is written."""
    await fund(sqlite_store, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_store.path}"
    refused = msgspec.structs.replace(make_hold("bad"), key_id="key_nobody")
    with contextlib.closing(sqlite3.connect(str(sqlite_store.path), isolation_level=None)) as other:
        steps = Steps()
        async with opened(url, HASTY_S) as hasty, writing(hasty, steps) as (writer, _):
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
    assert isinstance(refusal, StoreRefused)
    assert [end.result() for end in done] == [Ended(True, 1030), Ended(True, 1030)]
    assert (await money(sqlite_store), await findings(sqlite_store)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_an_outcome_whose_commit_was_not_confirmed_is_charged_once(postgres: Postgres, tmp_path: Path) -> None:
    """The connection is lost between the commit and its answer: the retry finds the outcome already written."""
    async with postgres_store(postgres) as (store, url), lossy_line(postgres, tmp_path) as line:
        await fund(store, DOLLAR_NANO)
        async with opened(line.url_of(url)) as far, writing(far) as (writer, metrics):
            await writer.hold(make_hold())
            line.lose_next_commit()
            assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(is_first=False)
            assert line.lost.is_set()
            assert counted(metrics, "ledger_retries") == 1
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_hold_whose_commit_was_not_confirmed_is_released(postgres: Postgres, tmp_path: Path) -> None:
    """A hold that failed because its answer was lost, but was taken, does not stay open."""
    async with postgres_store(postgres) as (store, url), lossy_line(postgres, tmp_path) as line:
        await fund(store, DOLLAR_NANO)
        async with opened(line.url_of(url)) as far, writing(far) as (writer, _):
            line.lose_next_commit()
            with pytest.raises(StoreUnavailable):
                await writer.hold(make_hold("r1"))
            assert line.lost.is_set()
            await writer.hold(make_hold("r2"))
            await writer.end(make_outcome("r2"))
            assert await state_of(store, "r1") == "released"
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


async def test_a_dropped_connection_loses_no_outcome(postgres: Postgres) -> None:
    """Postgres drops every connection: the next outcome is retried and written once."""
    async with postgres_store(postgres) as (store, url):
        await fund(store, DOLLAR_NANO)
        async with writing(store) as (writer, _):
            await writer.hold(make_hold())
            async with aside(url) as other:
                await other.rows(DROP_OTHERS)
            assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(True, 1030)
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_value_that_postgres_refuses_fails_alone(postgres: Postgres) -> None:
    """A text that Postgres cannot store fails that outcome only; the store does not count as unavailable."""
    async with postgres_store(postgres) as (store, _):
        await fund(store, DOLLAR_NANO)
        async with writing(store) as (writer, metrics):
            await hold_all(writer, [make_hold("r1"), make_hold("r2")])
            unfit = msgspec.structs.replace(make_outcome("r1"), model="no\0body")
            ends = [writer.end(unfit), writer.end(make_outcome("r2", Usage(100, 1)))]
            await asyncio.wait(ends, timeout=SOON_S)
            assert (counted(metrics, "ledger_refused"), counted(metrics, "ledger_retries")) == (1, 0)
            assert isinstance(ends[0].exception(), Exception)
            assert await end_all(writer, [make_outcome("r1")]) == [Ended(True)]
        assert ends[1].result() == Ended(True, 1030)
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_writers_that_meet_on_several_accounts_do_not_deadlock(postgres: Postgres) -> None:
    """Two batches that name the same accounts in opposite orders are both written at the first try."""
    async with postgres_store(postgres) as (store, url), opened(url) as far:
        for account in "abc":
            await fund(store, DOLLAR_NANO, account)

        async with writing(store) as (near, near_metrics), writing(far) as (other, far_metrics):
            async with transaction(url) as locking:
                await locking.rows("SELECT * FROM accounts WHERE id = 'acct_c' FOR UPDATE")
                queued = await queue_all(near, [make_hold(f"near_{one}", account=one) for one in "acb"])
                queued += await queue_all(other, [make_hold(f"far_{one}", account=one) for one in "bca"])
                assert await come_to_wait(store, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert [type(answer) for answer in answers] == [Held] * 6
            assert [counted(metrics, "ledger_retries") for metrics in (near_metrics, far_metrics)] == [0, 0]
        assert await findings(store) == []


async def test_writers_that_meet_on_one_idempotency_key_do_not_deadlock(postgres: Postgres) -> None:
    """One batch has the key and waits for the account, the other the reverse: both are answered."""
    async with postgres_store(postgres) as (store, url), opened(url) as far:
        await fund(store, DOLLAR_NANO)
        async with writing(store) as (near, near_metrics), writing(far) as (other, far_metrics):
            async with transaction(url) as locking:
                await locking.rows("SELECT * FROM accounts FOR UPDATE")
                queued = await queue_all(near, [make_hold("r1"), make_hold("r2", key=b"k" * 32)])
                assert await come_to_wait(store, 1)
                queued += await queue_all(other, [make_hold("r3", key=b"k" * 32)])
                assert await come_to_wait(store, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["Held", "Held", "Repeated"]
            assert [counted(metrics, "ledger_retries") for metrics in (near_metrics, far_metrics)] == [0, 0]
        assert await findings(store) == []


async def test_marks_and_outcomes_do_not_deadlock(postgres: Postgres) -> None:
    """Requests that end while their marks are written are settled at the first try, and the marks are written too."""
    log = io.StringIO()
    async with (
        postgres_store(postgres) as (store, url),
        writing(store, log_to=log, pace=MARKS_AT_ONCE) as (writer, metrics),
    ):
        await fund(store, DOLLAR_NANO)
        progress = Progress()
        for name in ("r1", "r2"):
            await writer.hold(make_hold(name))
            writer.track(name, progress)
        async with transaction(url) as locking:
            await locking.rows("SELECT * FROM holds WHERE completion_id = 'r1' FOR UPDATE")
            progress.delivered_tokens = 5
            assert await come_to_wait(store, 1)  # the marks, for r1
            ends = [writer.end(make_outcome(name, Usage(100, 5))) for name in ("r2", "r1")]
            await come_to_wait(store, 2, timeout_s=1.0)  # the outcomes, if they wait for the same lock
        assert await asyncio.gather(*ends) == [Ended(True, 1150), Ended(True, 1150)]
        assert counted(metrics, "ledger_retries") == 0
        assert '"level":"warning"' not in log.getvalue()
