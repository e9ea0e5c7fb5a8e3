"""Living and dead processes: the sweep never ends the holds of a living process, and those of a dead one once."""

import asyncio
import contextlib
from pathlib import Path

from cadenza.core.records import Usage
from cadenza.store.ledger import Ended
from cadenza.store.owners import Owner
from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import Store
from tests.postgres import Postgres
from tests.store.aside import DROP_OTHERS, aside
from tests.store.moves import (
    findings,
    fund,
    make_hold,
    make_outcome,
    money,
    opened,
    postgres_store,
    state_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO
from tests.store.spenders import hear, let_end, process, tell

WHOLE_NANO = 2500


def lock_file_modes(store: Store) -> list[int]:
    return [path.stat().st_mode & 0o777 for path in Path(f"{store.path}-owners").iterdir()]


async def sweep(url: str, times: int) -> None:
    """Start this many processes at once, which sweep and stop."""
    async with contextlib.AsyncExitStack() as stack:
        running = [await stack.enter_async_context(process("sweep", url)) for _ in range(times)]
        for one in running:
            await hear(one, "ready")
        async with asyncio.TaskGroup() as group:
            for one in running:
                group.create_task(let_end(one))


async def test_a_lock_is_free_only_when_its_owner_is_dead(store: Store, url: str) -> None:
    """Nobody can take the lock of a started owner. Once it has stopped, others can, one at a time."""
    async with opened(url) as beside:
        owner, other = Owner(store), Owner(beside)
        await owner.start()
        async with other.lock_of(owner.name) as is_free:
            assert not is_free
        async with other.lock_of("proc_nobody") as is_free, owner.lock_of("proc_nobody") as is_free_too:
            assert (is_free, is_free_too) == (True, False)
        await owner.stop()
        async with other.lock_of(owner.name) as is_free:
            assert is_free


async def test_each_owner_has_a_name_of_its_own(store: Store) -> None:
    """Two owners of one store have different names."""
    assert Owner(store).name != Owner(store).name


async def test_a_process_that_stops_removes_its_lock_file(sqlite_store: SqliteStore) -> None:
    """There is one file for each living process, private like the store, and none for a stopped one."""
    async with writing(sqlite_store):
        assert lock_file_modes(sqlite_store) == [0o600]
    assert lock_file_modes(sqlite_store) == []


async def test_a_living_process_keeps_its_holds(store: Store, url: str) -> None:
    """Another process starts, sweeps and stops; the hold stays open and its own process settles it."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        await writer.hold(make_hold())
        await sweep(url, 1)
        assert await state_of(store) == "open"
        assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(True, 1030)


async def test_a_killed_process_is_swept_once_and_a_living_one_never(store: Store, url: str) -> None:
    """After kill -9, two sweeps at once settle by the mark or release, once; a living process keeps its hold."""
    await fund(store, DOLLAR_NANO)
    async with (
        process("stay", url, "marked", "7") as one,
        process("stay", url, "silent", "0") as two,
        process("stay", url, "living", "3") as three,
    ):
        for running in (one, two, three):
            await hear(running, "ready")
            await tell(running)
            await hear(running, "held")
        one.kill()
        two.kill()
        await asyncio.gather(one.wait(), two.wait())
        assert await money(store) == (DOLLAR_NANO, 3 * WHOLE_NANO)
        await sweep(url, 2)
        names = ("marked", "silent", "living")
        assert [await state_of(store, name) for name in names] == ["settled", "released", "open"]
        assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 1210, WHOLE_NANO), [])
        if store.is_sqlite:
            assert lock_file_modes(store) == [0o600]
        await let_end(three)
    async with writing(store):
        assert await money(store) == (DOLLAR_NANO - 1210 - 1090, 0)
    assert await findings(store) == []


async def test_a_process_killed_while_it_held_nothing_leaves_no_file(sqlite_store: SqliteStore) -> None:
    """The next process that starts removes the file."""
    url = f"sqlite:///{sqlite_store.path}"
    async with process("stay", url, "r1", "0") as one:
        await hear(one, "ready")
        one.kill()
        await one.wait()
    assert lock_file_modes(sqlite_store) == [0o600]
    async with writing(sqlite_store):
        pass
    assert lock_file_modes(sqlite_store) == []


async def test_an_owner_that_lost_its_connection_can_stop(postgres: Postgres) -> None:
    """Stopping does not fail because the lock was lost with its connection."""
    async with postgres_store(postgres) as (store, url), opened(url) as beside:
        owner = Owner(store)
        await owner.start()
        async with aside(url) as other:
            await other.rows(DROP_OTHERS)
        await owner.stop()
        async with Owner(beside).lock_of(owner.name) as is_free:
            assert is_free
