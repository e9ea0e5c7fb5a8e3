"""Opening the store for commands that only read: it must be there, with the schema of this program."""

import asyncio
import contextlib
import io
import json
import sqlite3
from pathlib import Path

import pytest

from cadenza.control.store.prepare import WriteCheck, require_store
from cadenza.observe import make_log
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreUnavailable


async def test_a_store_that_is_there_is_enough_to_read(store: Store, tmp_path: Path) -> None:
    """A current store passes; one that does not exist, or has no schema, is refused and not made."""
    await require_store(store)
    missing = SqliteStore(tmp_path / "none" / "cadenza.db")
    with pytest.raises(StoreUnavailable, match="There is no store"):
        await require_store(missing)
    assert not missing.path.parent.exists()
    (tmp_path / "empty.db").touch()
    empty = SqliteStore(tmp_path / "empty.db")
    with pytest.raises(StoreUnavailable, match="cadenza migrate"):
        await require_store(empty)
    await empty.close()


async def test_a_store_of_a_newer_program_is_not_read(store: Store) -> None:
    """A schema that this program does not know is refused."""
    assert store.path
    with contextlib.closing(sqlite3.connect(store.path)) as other, other:
        other.execute("UPDATE schema_version SET revision = '9999', oldest_program = '9999'")
    with pytest.raises(StoreUnavailable, match="newer program"):
        await require_store(store)


WAIT_S = 60.0


async def test_a_store_that_takes_writes_has_no_problem(store: Store) -> None:
    """A check on a sound store finds nothing and logs nothing."""
    out = io.StringIO()
    check = WriteCheck(store, make_log(out), wait_s=WAIT_S)
    assert [await check.failure() for _ in range(3)] == [None] * 3
    assert out.getvalue() == ""


async def test_a_problem_is_told_until_it_ends_and_logged_once(store: Store) -> None:
    """While the table is gone every check fails with what to do; the log has one line; then it recovers."""
    out = io.StringIO()
    check = WriteCheck(store, make_log(out), every_s=0.0, wait_s=WAIT_S)
    await sql(store, "ALTER TABLE schema_version RENAME TO away")
    failures = [await check.failure() for _ in range(3)]
    assert ["no such table" in str(failure) and "cadenza migrate" in str(failure) for failure in failures] == [True] * 3
    [line] = map(json.loads, out.getvalue().splitlines())
    assert (line["event"], line["level"]) == ("the store takes no write", "warning")
    await sql(store, "ALTER TABLE away RENAME TO schema_version")
    assert await check.failure() is None


async def test_the_store_is_tried_once_in_a_while(store: Store) -> None:
    """Many checks at once and one after another share one trial."""
    check = WriteCheck(store, make_log(io.StringIO()), every_s=WAIT_S, wait_s=WAIT_S)
    assert await asyncio.gather(*(check.failure() for _ in range(20))) == [None] * 20
    await sql(store, "ALTER TABLE schema_version RENAME TO away")
    assert await check.failure() is None


async def test_a_store_that_hangs_is_a_problem_soon(store: Store) -> None:
    """A check waits only so long for a lock, says what may be wrong, and later why; it recovers without it."""
    check = WriteCheck(store, make_log(io.StringIO()), every_s=0.0, wait_s=0.05)
    assert store.path
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "within 0.05 seconds. End a process that locks it" in str(await check.failure())
        other.execute("ROLLBACK")
    async with asyncio.timeout(WAIT_S):
        while await check.failure():
            pass


async def sql(store: Store, statement: str) -> None:
    assert store.path
    with contextlib.closing(sqlite3.connect(store.path, timeout=WAIT_S)) as other, other:
        other.execute(statement)
