"""Copies of a SQLite store before a migration: complete, private, and few."""

import asyncio
import contextlib
import sqlite3
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cadenza.control.store.copies import back_up_store
from cadenza.core.errors import ControlError
from cadenza.store.migrate import migrate
from cadenza.store.sqlite.files import KEPT_MAX, back_up, find_backups
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store
from tests.cli.program import run
from tests.next_release import HEAD, next_release
from tests.store.moves import ON_POSTGRES
from tests.store.rows import run_sql

OTHERS = ("cadenza.db.backup", "cadenza.db.backup-0001-yesterday", "other.db.backup-0001-20260101T000000.000Z")


def test_only_the_newest_copies_are_kept(tmp_path: Path) -> None:
    """Of many copies the newest three stay; files with other names are never deleted."""
    database = tmp_path / "cadenza.db"
    for name in OTHERS:
        (tmp_path / name).write_text("mine")
    with contextlib.closing(sqlite3.connect(database)) as source:
        source.execute("CREATE TABLE numbers (number INTEGER)")
        made = list[Path]()
        for number in range(KEPT_MAX + 3):
            source.execute("INSERT INTO numbers VALUES (?)", (number,))
            source.commit()
            made.append(back_up(source, database, f"000{9 - number}"))
    assert find_backups(database) == made[-KEPT_MAX:]
    assert all((tmp_path / name).read_text() == "mine" for name in OTHERS)
    assert [stat.S_IMODE(path.stat().st_mode) for path in made[-KEPT_MAX:]] == [0o600] * KEPT_MAX
    with contextlib.closing(sqlite3.connect(made[-1])) as copy:
        assert copy.execute("SELECT count(*) FROM numbers").fetchone() == (KEPT_MAX + 3,)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A copy that cannot be completed is deleted, and the error is the driver's."""
    database = tmp_path / "cadenza.db"
    source = sqlite3.connect(database)
    source.close()
    with pytest.raises(sqlite3.ProgrammingError):
        back_up(source, database, HEAD)
    assert find_backups(database) == []
    assert not list(tmp_path.glob("*.partial"))


async def test_a_migration_copies_what_was_committed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The copy has every row that was committed before the migration, and its own schema."""
    store = SqliteStore(tmp_path / "cadenza.db")
    await migrate(store)
    await run_sql(
        store,
        "INSERT INTO accounts (id, email, password_hash, created_at) VALUES ('acct_a', 'a@example.org', 'hash', 1)",
    )
    (tmp_path / "cadenza.toml").write_text('[store]\nurl = "sqlite:///./cadenza.db"\n')
    done = await asyncio.to_thread(run, tmp_path, "migrate", **next_release(tmp_path_factory.mktemp("next")))
    [copy] = find_backups(store.path)
    assert (done.returncode, str(copy) in done.stderr) == (0, True), done
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT email FROM accounts").fetchall() == [("a@example.org",)]
        assert connection.execute("SELECT revision FROM schema_version").fetchall() == [(HEAD,)]
    await store.close()


async def test_a_new_store_is_not_copied(tmp_path: Path) -> None:
    """There is nothing to copy before the first migration, and no migration of a current store."""
    store = SqliteStore(tmp_path / "cadenza.db")
    copies = list[Path]()
    for _ in range(2):
        await migrate(store, copies.append)
    assert copies == find_backups(store.path) == []
    await store.close()


@ON_POSTGRES
async def test_a_postgres_store_is_left_to_postgres(store: Store) -> None:
    """The error names the command that copies it."""
    with pytest.raises(ControlError, match=r"pg_dump --format=custom --file='a copy' ADDRESS$"):
        await back_up_store(store, Path("a copy"), datetime.now(UTC))
