"""The writer and a store that fails it: holds are refused, ends wait and are written once, and nothing leaks."""

import asyncio
import contextlib
import io
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.store.database import Database, StoreRefused, StoreUnavailable
from cadenza.store.ledger import Ended, Held
from cadenza.store.writer import BATCH_MAX
from tests.postgres import Postgres
from tests.store.lossy import lossy_line
from tests.store.moves import (
    Progress,
    Steps,
    come_to_wait,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_end,
    make_hold,
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


class Overheard(io.StringIO):
    """A log that does something when certain words are said."""

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
    """Another process has the store's write lock."""
    async with opened(url) as beside, beside.write() as conn:
        if not beside.is_sqlite:
            await conn.execute(text("LOCK TABLE accounts IN EXCLUSIVE MODE"))
        yield


async def test_a_locked_store_refuses_holds_and_keeps_ends(db: Database, url: str) -> None:
    """Holds fail and leave nothing; ends are tried until the lock is gone, and are then written once."""
    await fund(db, DOLLAR_NANO)
    async with opened(url, HASTY_S) as hasty, writing(hasty) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        async with locked(url):
            ends = [writer.end(make_end("r1", Usage(100, 1))), writer.end(make_end("r2"))]
            for attempt in range(3):
                with pytest.raises(StoreUnavailable):
                    await writer.hold(make_hold(f"late{attempt}"), Progress())
            assert [end.done() for end in ends] == [False, False]
        assert await asyncio.gather(*ends) == [Ended(True, 1030), Ended(True)]
        assert counted(metrics, "ledger_retries") >= 3
        assert isinstance(await writer.hold(make_hold("r3"), Progress()), Held)
        await writer.end(make_end("r3"))
    assert [await state_of(db, f"late{attempt}") for attempt in range(3)] == [None] * 3
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_hold_behind_many_ends_is_refused_too(db: Database, url: str) -> None:
    """A store that does not take a whole batch of ends takes no hold either: it fails, and does not wait its turn."""
    await fund(db, DOLLAR_NANO)
    names = [f"r{number}" for number in range(BATCH_MAX)]
    async with opened(url, HASTY_S) as hasty, writing(hasty) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        async with locked(url):
            ends = [writer.end(make_end(name)) for name in names]
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(writer.hold(make_hold("late"), Progress()), SOON_S)
        assert await asyncio.gather(*ends) == [Ended(True)] * BATCH_MAX
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO, 0), [])


async def test_a_stop_beside_a_locked_store_ends_and_loses_nothing(db: Database, url: str) -> None:
    """The writer gives up in bounded time; what it could not write is ended by the next one, once."""
    await fund(db, DOLLAR_NANO)
    async with opened(url, HASTY_S) as hasty, asyncio.timeout(SOON_S), contextlib.AsyncExitStack() as stack:
        writer, _ = await stack.enter_async_context(writing(hasty))
        await writer.hold(make_hold(), Progress())
        async with locked(url):
            writer.end(make_end(usage=Usage(100, 1)))
            await stack.aclose()
    assert await money(db) == (DOLLAR_NANO, WHOLE_NANO)
    async with writing(db):
        assert await money(db) == (DOLLAR_NANO, 0)
    assert await findings(db) == []


async def test_a_caller_who_leaves_as_its_hold_fails_has_left(sqlite_db: Database) -> None:
    """Cancelled between the refusal and its hearing, the task ends cancelled, as its canceller expects."""
    await fund(sqlite_db, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_db.path}"
    leaving: list[asyncio.Task[object]] = []

    def leave() -> None:
        leaving[0].cancel()

    log = Overheard("did not take a batch", leave)
    async with opened(url, HASTY_S) as hasty, writing(hasty, log_to=log) as (writer, _), locked(url):
        leaving.append(asyncio.create_task(writer.hold(make_hold(), Progress())))
        await asyncio.wait(leaving)
    assert leaving[0].cancelled()


async def test_a_store_that_locks_while_a_bad_move_is_set_apart_loses_nothing(sqlite_db: Database) -> None:
    """Where a batch is being written one by one and the store goes away, the rest waits like everything else."""
    await fund(sqlite_db, DOLLAR_NANO)
    url = f"sqlite:///{sqlite_db.path}"
    stranger = msgspec.structs.replace(make_hold("bad"), key_id="key_nobody")
    with contextlib.closing(sqlite3.connect(str(sqlite_db.path), isolation_level=None)) as other:
        steps = Steps()
        async with opened(url, HASTY_S) as hasty, writing(hasty, steps) as (writer, _):
            await hold_all(writer, [make_hold("r1"), make_hold("r2")])
            queued = await queue_all(writer, [stranger])
            ends = [writer.end(make_end("r1", Usage(100, 1))), writer.end(make_end("r2", Usage(100, 1)))]
            steps.actions["ledger_commit"] = [
                lambda: None,  # the batch, which is refused
                lambda: None,  # the stranger, alone
                lambda: other.execute("BEGIN IMMEDIATE"),  # the first end, alone
                lambda: other.execute("ROLLBACK"),  # and again
            ]
            (refusal,) = await asyncio.gather(*queued, return_exceptions=True)
            done, _ = await asyncio.wait(ends, timeout=SOON_S)
    assert isinstance(refusal, StoreRefused)
    assert [end.result() for end in done] == [Ended(True, 1030), Ended(True, 1030)]
    assert (await money(sqlite_db), await findings(sqlite_db)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_an_end_whose_commit_was_not_heard_of_is_charged_once(postgres: Postgres, tmp_path: Path) -> None:
    """The connection dies between the commit and its answer: the end is tried again and finds itself done."""
    async with postgres_store(postgres) as (db, url), lossy_line(postgres, tmp_path) as line:
        await fund(db, DOLLAR_NANO)
        async with opened(line.url_of(url)) as far, writing(far) as (writer, metrics):
            await writer.hold(make_hold(), Progress())
            line.lose_next_commit()
            assert await writer.end(make_end(usage=Usage(100, 1))) == Ended(is_first=False)
            assert line.lost.is_set()
            assert counted(metrics, "ledger_retries") == 1
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_hold_whose_commit_was_not_heard_of_is_given_back(postgres: Postgres, tmp_path: Path) -> None:
    """A hold that was refused for want of an answer, and yet was taken, does not stay open while the process lives."""
    async with postgres_store(postgres) as (db, url), lossy_line(postgres, tmp_path) as line:
        await fund(db, DOLLAR_NANO)
        async with opened(line.url_of(url)) as far, writing(far) as (writer, _):
            line.lose_next_commit()
            with pytest.raises(StoreUnavailable):
                await writer.hold(make_hold("r1"), Progress())
            assert line.lost.is_set()
            await writer.hold(make_hold("r2"), Progress())
            await writer.end(make_end("r2"))
            assert await state_of(db, "r1") == "released"
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO, 0), [])


async def test_a_dropped_connection_loses_no_end(postgres: Postgres) -> None:
    """Postgres drops every connection: the next end finds none, is tried again and is written once."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    async with postgres_store(postgres) as (db, url), opened(url) as beside:
        await fund(db, DOLLAR_NANO)
        async with writing(db) as (writer, _):
            await writer.hold(make_hold(), Progress())
            async with beside.read() as conn:
                await conn.execute(text(others))
            assert await writer.end(make_end(usage=Usage(100, 1))) == Ended(True, 1030)
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_a_value_that_postgres_itself_refuses_fails_alone(postgres: Postgres) -> None:
    """A text that it cannot store is a fault of that end alone, and no reason to take the store for gone."""
    async with postgres_store(postgres) as (db, _):
        await fund(db, DOLLAR_NANO)
        async with writing(db) as (writer, metrics):
            await hold_all(writer, [make_hold("r1"), make_hold("r2")])
            unfit = msgspec.structs.replace(make_end("r1"), model="no\0body")
            ends = [writer.end(unfit), writer.end(make_end("r2", Usage(100, 1)))]
            await asyncio.wait(ends, timeout=SOON_S)
            assert (counted(metrics, "ledger_refused"), counted(metrics, "ledger_retries")) == (1, 0)
            assert isinstance(ends[0].exception(), Exception)
            assert await end_all(writer, [make_end("r1")]) == [Ended(True)]
        assert ends[1].result() == Ended(True, 1030)
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1030, 0), [])


async def test_writers_that_meet_on_several_accounts_do_not_deadlock(postgres: Postgres) -> None:
    """Two batches that want the same accounts in opposite orders are both written, at the first try."""
    async with postgres_store(postgres) as (db, url), opened(url) as far:
        for account in "abc":
            await fund(db, DOLLAR_NANO, account)

        async with writing(db) as (near, near_metrics), writing(far) as (other, far_metrics):
            async with db.write() as conn:
                await conn.execute(text("SELECT * FROM accounts WHERE id = 'acct_c' FOR UPDATE"))
                queued = await queue_all(near, [make_hold(f"near_{one}", account=one) for one in "acb"])
                queued += await queue_all(other, [make_hold(f"far_{one}", account=one) for one in "bca"])
                assert await come_to_wait(db, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert [type(answer) for answer in answers] == [Held] * 6
            assert [counted(metrics, "ledger_retries") for metrics in (near_metrics, far_metrics)] == [0, 0]
        assert await findings(db) == []


async def test_writers_that_meet_on_one_idempotency_key_do_not_deadlock(postgres: Postgres) -> None:
    """One has noted the key and wants the account, the other has the account and wants the key: both are answered."""
    async with postgres_store(postgres) as (db, url), opened(url) as far:
        await fund(db, DOLLAR_NANO)
        async with writing(db) as (near, near_metrics), writing(far) as (other, far_metrics):
            async with db.write() as conn:
                await conn.execute(text("SELECT * FROM accounts FOR UPDATE"))
                queued = await queue_all(near, [make_hold("r1"), make_hold("r2", key=b"k" * 32)])
                assert await come_to_wait(db, 1)
                queued += await queue_all(other, [make_hold("r3", key=b"k" * 32)])
                assert await come_to_wait(db, 2)
            answers = await asyncio.gather(*queued, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["Held", "Held", "Repeated"]
            assert [counted(metrics, "ledger_retries") for metrics in (near_metrics, far_metrics)] == [0, 0]
        assert await findings(db) == []


async def test_marks_and_ends_do_not_deadlock(postgres: Postgres) -> None:
    """Streams that end while their marks are being written are settled at the first try, and so are the marks."""
    log = io.StringIO()
    async with postgres_store(postgres) as (db, _), writing(db, log_to=log) as (writer, metrics):
        await fund(db, DOLLAR_NANO)
        progress = Progress()
        for name in ("r1", "r2"):
            await writer.hold(make_hold(name), progress)
        async with db.write() as conn:
            await conn.execute(text("SELECT * FROM holds WHERE request_id = 'r1' FOR UPDATE"))
            progress.delivered_tokens = 5
            assert await come_to_wait(db, 1)  # the marks, for r1
            ends = [writer.end(make_end(name, Usage(100, 5))) for name in ("r2", "r1")]
            await come_to_wait(db, 2, timeout_s=1.0)  # the ends, where they meet the marks at all
        assert await asyncio.gather(*ends) == [Ended(True, 1150), Ended(True, 1150)]
        assert (counted(metrics, "ledger_retries"), log.getvalue()) == (0, "")
