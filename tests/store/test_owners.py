"""Who lives and who is gone: the holds of a living process are never touched, those of a dead one are ended once."""

import asyncio
import contextlib
from pathlib import Path

from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.store.database import Database
from cadenza.store.ledger import Ended
from cadenza.store.owners import Owner
from tests.postgres import Postgres
from tests.store.moves import (
    Progress,
    findings,
    fund,
    make_end,
    make_hold,
    money,
    opened,
    postgres_store,
    state_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO
from tests.store.spenders import hear, let_end, process, tell

WHOLE_NANO = 2500
DROP_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"


def lock_files(db: Database) -> list[int]:
    """Their modes."""
    return [path.stat().st_mode & 0o777 for path in Path(f"{db.path}-owners").iterdir()]


async def sweep(url: str, times: int) -> None:
    """So many processes start at once, each of which sweeps, and stop."""
    async with contextlib.AsyncExitStack() as stack:
        running = [await stack.enter_async_context(process("sweep", url)) for _ in range(times)]
        for one in running:
            await hear(one, "ready")
        async with asyncio.TaskGroup() as group:
            for one in running:
                group.create_task(let_end(one))


async def test_a_lock_is_free_only_while_its_owner_is_gone(db: Database, url: str) -> None:
    """Nobody gets the lock of an owner that has started; anybody, but one at a time, gets it once it has stopped."""
    async with opened(url) as beside:
        owner, other = Owner(db), Owner(beside)
        await owner.start()
        async with other.lock_of(owner.name) as is_gone:
            assert not is_gone
        async with other.lock_of("proc_nobody") as is_gone, owner.lock_of("proc_nobody") as is_gone_too:
            assert (is_gone, is_gone_too) == (True, False)
        await owner.stop()
        async with other.lock_of(owner.name) as is_gone:
            assert is_gone


async def test_each_owner_has_a_name_of_its_own(db: Database) -> None:
    """Two owners of one store are never taken for each other."""
    assert Owner(db).name != Owner(db).name


async def test_a_process_that_stops_takes_its_lock_file_along(sqlite_db: Database) -> None:
    """There is one file per living process, private like the store, and none of those that stopped."""
    async with writing(sqlite_db):
        assert lock_files(sqlite_db) == [0o600]
    assert lock_files(sqlite_db) == []


async def test_a_living_process_keeps_its_holds(db: Database, url: str) -> None:
    """Others start, sweep and stop beside it; its hold stays open, and it settles it itself."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        await writer.hold(make_hold(), Progress())
        await sweep(url, 1)
        assert await state_of(db) == "open"
        assert await writer.end(make_end(usage=Usage(100, 1))) == Ended(True, 1030)


async def test_a_killed_process_is_swept_once_and_a_living_one_never(db: Database, url: str) -> None:
    """After kill -9, two that sweep at once settle by the mark or release, once; a neighbour is left alone."""
    await fund(db, DOLLAR_NANO)
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
        assert await money(db) == (DOLLAR_NANO, 3 * WHOLE_NANO)
        await sweep(url, 2)
        names = ("marked", "silent", "living")
        assert [await state_of(db, name) for name in names] == ["settled", "released", "open"]
        assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 1210, WHOLE_NANO), [])
        if db.is_sqlite:
            assert lock_files(db) == [0o600]
        await let_end(three)
    async with writing(db):
        assert await money(db) == (DOLLAR_NANO - 1210 - 1090, 0)
    assert await findings(db) == []


async def test_a_process_killed_while_it_held_nothing_leaves_no_file(sqlite_db: Database) -> None:
    """The next start tidies up after it."""
    url = f"sqlite:///{sqlite_db.path}"
    async with process("stay", url, "r1", "0") as one:
        await hear(one, "ready")
        one.kill()
        await one.wait()
    assert lock_files(sqlite_db) == [0o600]
    async with writing(sqlite_db):
        pass
    assert lock_files(sqlite_db) == []


async def test_a_process_that_lost_its_connection_can_stop(postgres: Postgres) -> None:
    """A lock that went with its connection is no reason to fail at the end."""
    async with postgres_store(postgres) as (db, url), opened(url) as beside:
        owner = Owner(db)
        await owner.start()
        async with beside.read() as conn:
            await conn.execute(text(DROP_OTHERS))
        await owner.stop()
        async with Owner(beside).lock_of(owner.name) as is_gone:
            assert is_gone
