"""Living and dead processes: a dead one is found, a living one never, and one that was taken for dead begins again."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from cadenza.fleet import presence as processes
from cadenza.fleet.presence import USUAL_BOUNDS, Host, Observation, Presence
from cadenza.store import schema
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from tests.postgres import Postgres
from tests.store.moves import ON_POSTGRES, comes_true, opened
from tests.store.presences import FailingPostgres, HandClock, all_beat, beats, other_process, pass_time, present
from tests.store.rows import run_sql

REGISTER = Statement(insert(schema.processes), "name", "version", "revision", "host", "pid")
SILENT = "proc_silent"
SILENT_ROW = {"name": SILENT, "version": "", "revision": "", "host": "", "pid": 1}
HOUR_S = 3600.0


def lock_files(store: SqliteStore) -> list[Path]:
    return sorted(Path(f"{store.path}-owners").iterdir())


async def add_silent(store: Store) -> None:
    """Add a process that never beats."""
    await store.transact(lambda tx: tx.change(REGISTER, SILENT_ROW))


async def sweep(store: Store, observer: Presence, name: str) -> bool:
    def work(tx: Transaction) -> bool:
        is_ours = observer.fence(tx, name)
        if is_ours:
            processes.remove(tx, name)
        return is_ours

    return await store.transact(work)


@pytest.fixture
async def failing(postgres: Postgres) -> AsyncIterator[FailingPostgres]:
    with postgres.migrated_database() as url:
        store = FailingPostgres(url)
        yield store
        await store.close()


async def test_a_killed_process_is_dead(store: Store, url: str) -> None:
    """On SQLite at once; on Postgres when its beats have stood still for dead_s."""
    clock = HandClock()
    async with present(store, clock) as observer, other_process(url) as (other, name):
        assert await observer.find_dead() == []
        await other.kill()
        if store.is_shared_by_machines:
            await all_beat(store, observer)
            await pass_time(store, clock, USUAL_BOUNDS.dead_s - 0.5, observer)
            assert await observer.find_dead() == []
            await pass_time(store, clock, 0.5, observer)
        assert await observer.find_dead() == [name]
        assert await sweep(store, observer, name)
        assert set(await beats(store)) == {observer.name}


async def test_a_living_process_is_never_dead(store: Store, url: str) -> None:
    """However long both live, neither finds the other dead."""
    clock = HandClock()
    async with opened(url) as beside, present(store, clock) as one, present(beside, clock) as two:
        for _ in range(4):
            await pass_time(store, clock, 5.0, one, two)
            assert (await one.find_dead(), await two.find_dead()) == ([], [])


async def test_a_clock_that_is_set_does_not_matter(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps by an hour, forth and back: nobody is dead, and each is fresh after its next beat."""
    wall_s, wall_ns = time.time, time.time_ns
    clock = HandClock()
    async with opened(url) as beside, present(store, clock) as one, present(beside, clock) as two:
        for jump_s in (HOUR_S, -HOUR_S):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: wall_s() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda jump_s=jump_s: wall_ns() + round(jump_s * 1e9))
            await pass_time(store, clock, 7.0, one, two)
            assert (await one.find_dead(), await two.find_dead()) == ([], [])
            assert one.is_fresh
            assert two.is_fresh


async def test_an_outage_restarts_the_observation(failing: FailingPostgres) -> None:
    """Time in which the observer could not read does not count against a silent process."""
    clock = HandClock()
    await add_silent(failing)
    async with present(failing, clock) as observer:
        await pass_time(failing, clock, 5.5, observer)
        failing.is_down = True
        assert await comes_true(lambda: failing.failures > 0)
        clock.now_s += HOUR_S
        failing.is_down = False
        await all_beat(failing, observer)
        await pass_time(failing, clock, 5.5, observer)
        assert await observer.find_dead() == []
        await pass_time(failing, clock, 1.0, observer)
        assert await observer.find_dead() == [SILENT]


async def test_a_process_taken_for_dead_begins_again(failing: FailingPostgres, postgres: Postgres) -> None:
    """It notices at its next beat, is not fresh, and registers under a new name."""
    clock = HandClock()
    async with present(failing, clock) as alive, opened(failing.url) as beside, present(beside, clock) as observer:
        failing.is_down = True
        before = alive.name
        await pass_time(beside, clock, 14.0, observer)  # a beat that was under way may still count
        assert not alive.is_fresh
        assert await observer.find_dead() == [before]
        assert await sweep(beside, observer, before)
        failing.is_down = False
        assert await comes_true(lambda: alive.is_swept)
        assert not alive.is_fresh
        await alive.rejoin()
        assert (alive.is_swept, alive.is_fresh) == (False, True)
        assert set(await beats(beside)) == {alive.name, observer.name}
        assert alive.name != before


async def test_a_process_that_beats_again_is_not_swept(failing: FailingPostgres, postgres: Postgres) -> None:
    """A beat between finding it dead and sweeping it keeps it."""
    clock = HandClock()
    async with present(failing, clock) as alive, opened(failing.url) as beside, present(beside, clock) as observer:
        failing.is_down = True
        await pass_time(beside, clock, 7.0, observer)
        assert await observer.find_dead() == [alive.name]
        failing.is_down = False
        await all_beat(beside, alive)
        assert not await sweep(beside, observer, alive.name)
        assert alive.name in await beats(beside)


async def test_a_dead_process_is_swept_by_one(store: Store, url: str) -> None:
    """Of two that find it dead, one claims it."""
    clock = HandClock()
    await add_silent(store)
    async with opened(url) as beside, present(store, clock) as one, present(beside, clock) as two:
        await pass_time(store, clock, 7.0, one, two)
        assert await one.find_dead() == [SILENT]
        assert await two.find_dead() == [SILENT]
        assert [await sweep(store, one, SILENT), await sweep(beside, two, SILENT)] == [True, False]


async def test_freshness_counts_from_when_the_beat_was_sent(failing: FailingPostgres) -> None:
    """An answer that took long makes a process fresh for a shorter time."""
    clock = HandClock()
    presence = Presence(failing, processes.HeartbeatBounds(heartbeat_every_s=HOUR_S), Host(elapsed_s=clock))

    def take_long() -> None:
        clock.now_s += 0.25

    failing.during = take_long
    await presence.start()  # three transactions: the registration, the beat, and the epoch that is followed
    fresh = [presence.is_fresh]
    for wait_s in (USUAL_BOUNDS.fresh_s - 0.51, 0.01):
        clock.now_s += wait_s
        fresh.append(presence.is_fresh)
    assert fresh == [True, True, False]
    await presence.stop()


async def test_an_unexpected_error_does_not_end_the_beats(failing: FailingPostgres) -> None:
    """It is reported, the process is not fresh, and the next beat is tried as ever."""
    clock, reported = HandClock(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail_once() -> None:
        failing.during = lambda: None
        raise LookupError

    async with present(failing, clock) as presence:
        failing.during = fail_once
        assert await comes_true(lambda: bool(reported))
        await all_beat(failing, presence)
        assert presence.is_fresh
    assert [type(error) for error in reported] == [LookupError]


async def test_lock_files_live_as_long_as_their_processes(sqlite_store: SqliteStore) -> None:
    """There is one file for each living process, private like the store, and none for a stopped one."""
    async with present(sqlite_store) as presence:
        assert [(file.name, file.stat().st_mode & 0o777) for file in lock_files(sqlite_store)] == [
            (presence.name, 0o600)
        ]
    assert lock_files(sqlite_store) == []


async def test_a_lock_file_left_behind_is_removed(sqlite_store: SqliteStore) -> None:
    """A process killed before it was registered leaves a file; the files of living processes stay."""
    async with present(sqlite_store) as one, present(sqlite_store) as two:
        left_behind = lock_files(sqlite_store)[0].with_name("proc_left_behind")
        left_behind.touch()
        assert await one.find_dead() == []
        assert {file.name for file in lock_files(sqlite_store)} == {one.name, two.name}


def test_an_observation_counts_from_read_to_read() -> None:
    """From the moment the first read had returned to the moment the last one was sent."""
    seen = Observation(USUAL_BOUNDS)
    for now_s in range(7):
        seen.note({"a": 5, "b": now_s}, now_s - 0.25, float(now_s))
    assert seen.dead(6.0) == {}
    seen.note({"a": 5, "b": 7}, 6.0, 6.25)
    assert seen.dead(6.25) == {"a": 5}


@pytest.mark.parametrize("late_s", [1.01, 60.0])
def test_a_late_read_begins_the_observation_again(late_s: float) -> None:
    """The time before it does not count, and without a recent read nobody is dead."""
    seen = Observation(USUAL_BOUNDS)
    for now_s in range(7):
        seen.note({"a": 5}, now_s, now_s)
    assert seen.dead(6.0) == {"a": 5}
    assert seen.dead(6.0 + late_s) == {}
    seen.note({"a": 5}, 6.0 + late_s, 6.0 + late_s)
    assert seen.dead(6.0 + late_s) == {}


def test_beats_that_go_back_are_beats() -> None:
    """A replica that was promoted may know fewer beats of a living process."""
    seen = Observation(USUAL_BOUNDS)
    for now_s in range(13):
        seen.note({"a": 5 if now_s < 5 else 3}, now_s, now_s)
        assert (seen.dead(now_s) == {}) is (now_s < 11)


@ON_POSTGRES
async def test_a_fenced_process_is_dead_at_once_and_learns_it(store: Store) -> None:
    """A sweep that did not end can go on elsewhere without a wait, and a living process does not beat on."""
    async with present(store) as observer, present(store) as fenced:
        await add_silent(store)
        await run_sql(store, f"UPDATE processes SET beats = {processes.FENCED} WHERE name <> '{observer.name}'")
        await all_beat(store, observer)
        assert await observer.find_dead() == sorted([SILENT, fenced.name])
        assert await sweep(store, observer, SILENT)
        assert await comes_true(lambda: fenced.is_swept)
        assert (await beats(store))[fenced.name] == processes.FENCED
