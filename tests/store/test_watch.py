"""Announcements: a transaction of one process wakes the watchers of all, on both databases."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cadenza.parts.postgres.store import Listener
from cadenza.store.address import open_store
from cadenza.store.sqlite.store import POLL_INTERVAL_S, SqliteStore
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreUnavailable, Transaction
from tests.postgres import Postgres
from tests.store.aside import DROP_OTHERS, aside
from tests.store.lossy import lossy_line
from tests.store.processes import announce

WAIT_S = 60.0
QUIET_S = 0.3  # long enough for a watcher to look several times
OWN_COMMITS = 6


def change(tx: Transaction) -> None:
    tx.change(Statement(text("UPDATE epochs SET number = number + 1")), {})


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await event.wait()
    event.clear()


@pytest.fixture
async def other(store: Store, url: str) -> AsyncIterator[Store]:
    """The store as another process would have it."""
    opened = open_store(url, WAIT_S)
    await opened.ping()
    yield opened
    await opened.close()


async def test_an_announcement_wakes_all_watchers(store: Store, other: Store) -> None:
    """A committed announcement wakes the watchers of its own store and of another one, every time."""
    woken, woken_elsewhere = asyncio.Event(), asyncio.Event()
    async with store.watch(woken.set), other.watch(woken_elsewhere.set):
        for _ in range(3):
            await store.transact(announce)
            await wait_for(woken)
            await wait_for(woken_elsewhere)


async def test_a_watcher_sees_what_was_announced(store: Store, other: Store) -> None:
    """When a watcher is woken, the announced change is committed."""
    number = Statement(text("SELECT MAX(number) FROM epochs"))
    before = await other.row(number, {})
    woken = asyncio.Event()
    async with other.watch(woken.set):
        await store.transact(announce)
        await wait_for(woken)
        assert await other.row(number, {}) != before


async def test_what_is_rolled_back_is_not_announced(store: Store, other: Store) -> None:
    """A transaction that fails wakes nobody."""

    def fail(tx: Transaction) -> None:
        announce(tx)
        raise LookupError

    woken = asyncio.Event()
    async with other.watch(woken.set):
        with pytest.raises(LookupError):
            await store.transact(fail)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(woken.wait(), QUIET_S)


async def test_own_commits_wake_nobody_unless_they_are_announced(sqlite_store: SqliteStore) -> None:
    """On SQLite every commit of another store wakes a watcher, and few of its own do: those it looks at in between."""
    other, woken, in_vain = SqliteStore(sqlite_store.path), asyncio.Event(), 0
    await sqlite_store.transact(change)
    async with sqlite_store.watch(woken.set):
        for _ in range(OWN_COMMITS):
            await sqlite_store.transact(change, is_brief=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), QUIET_S / 3)
            in_vain += woken.is_set()
            woken.clear()
        for _ in range(3):
            await asyncio.gather(sqlite_store.transact(change), other.transact(change))
            await wait_for(woken)
    await other.close()
    assert in_vain < OWN_COMMITS / 2


class LookedAt(SqliteStore):
    """Notes how long after the last request each look for a commit was."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked_s = -math.inf
        self.pauses_s: list[float] = []

    def change_mark(self) -> object:
        self.pauses_s.append(time.monotonic() - self.asked_s)
        return super().change_mark()

    def serve_request(self) -> None:
        self.asked_s = time.monotonic()
        super().change_mark()


async def test_a_watcher_does_not_look_while_requests_do(sqlite_store: SqliteStore) -> None:
    """While requests ask for the change mark, it asks only after a pause of them, and still hears of every commit."""
    store, woken = LookedAt(sqlite_store.path), asyncio.Event()
    async with store.watch(woken.set), asyncio.timeout(WAIT_S):
        for _ in range(3):
            await sqlite_store.transact(change)
            while not woken.is_set():
                store.serve_request()
                await asyncio.sleep(0.001)
            woken.clear()
    await store.close()
    assert all(pause_s > POLL_INTERVAL_S / 2 for pause_s in store.pauses_s)


async def test_nothing_is_heard_after_the_block(store: Store, other: Store) -> None:
    """A watch ends with its block."""
    woken = asyncio.Event()
    async with other.watch(woken.set):
        pass
    await store.transact(announce)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(woken.wait(), QUIET_S)


async def test_a_lost_connection_is_made_again_and_wakes(postgres: Postgres) -> None:
    """When Postgres drops the connection that listens, the watcher is woken and hears the next announcement."""
    with postgres.migrated_database() as url:
        store, woken = open_store(url, WAIT_S), asyncio.Event()
        async with store.watch(woken.set):
            async with aside(url) as dropping:
                await dropping.rows(DROP_OTHERS)
            await wait_for(woken)
            async with aside(url) as announcing:
                await announcing.execute("NOTIFY cadenza")
            await wait_for(woken)
        await store.close()


async def test_a_connection_that_is_lost_before_it_listens_cannot_be_watched(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Postgres took the connection, and it was lost before the answer to LISTEN: a StoreUnavailable, too."""
    with postgres.migrated_database() as url:
        async with lossy_line(postgres, tmp_path) as line:
            store = open_store(line.url_of(url), WAIT_S)
            await store.ping()
            line.lose_next(b"LISTEN")
            with pytest.raises(StoreUnavailable):
                async with store.watch(lambda: None):
                    pass
            await store.close()


async def test_a_store_that_does_not_answer_cannot_be_watched(tmp_path: Path) -> None:
    """A watch that cannot begin is a StoreUnavailable."""
    (tmp_path / "folder").mkdir()
    for url in (f"sqlite:///{tmp_path}/folder", f"postgresql://user@/db?host={tmp_path}"):
        store = open_store(url)
        with pytest.raises(StoreUnavailable):
            async with store.watch(lambda: None):
                pass
        await store.close()


class LostConnection:
    """A connection as a listener uses it, until the test loses it."""

    def __init__(self) -> None:
        self.on_end: list[Callable[[object], None]] = []

    def add_termination_listener(self, listener: Callable[[object], None]) -> None:
        self.on_end.append(listener)

    async def add_listener(self, channel: str, listener: Callable[..., None]) -> None:
        """Nothing is announced."""

    def terminate(self) -> None:
        """It is lost."""


@pytest.mark.parametrize("turns", range(5))
async def test_a_watch_ends_in_the_moment_in_which_its_connection_is_lost(turns: int) -> None:
    """A process that stops, or that could not start, does not wait for ever for its listener."""
    connection = LostConnection()

    async def connect(listen: Callable[[Any], Awaitable[None]]) -> Any:
        await listen(connection)
        return connection

    listener = Listener(connect, lambda: None)
    await listener.connect()
    keeping = asyncio.create_task(listener.keep_connected())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for lost in connection.on_end:
        lost(connection)
    for _ in range(turns):
        await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait([keeping], timeout=1)
    assert keeping.cancelled()
