"""A damaged write-ahead log: SQLite reads what comes before the damage, and a start names what was lost."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from cadenza.core.records import Usage
from cadenza.store.process_locks import ProcessLocks, note
from cadenza.store.sqlite.lost_commits import FRAME_HEAD, LOG_HEAD, find_lost_commits
from cadenza.store.sqlite.store import SqliteStore
from tests.cli.program import run_here, serving, wait_until
from tests.migrated import copy_migrated_store
from tests.store.moves import finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO

CHARGES = 20
PARTS = ("", "-wal", "-shm", "-owners")
Damage = Callable[[Path, int], None]  # of a log whose frames have so many bytes


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with charges as a process left it that was killed."""
    return asyncio.run(leave_store(tmp_path_factory.mktemp("died")))


async def leave_store(folder: Path) -> Path:
    copy_migrated_store(folder / "used.db")
    store = SqliteStore(folder / "used.db")
    await fund(store, DOLLAR_NANO)
    for number in range(CHARGES):
        hold = make_hold(f"r{number}")
        await take(store, hold)
        await finish(store, hold, Usage(10, 1))
    locks = ProcessLocks(folder / "used.db")
    lock = locks.lock("proc_dead")
    assert lock is not None
    note(lock, CHARGES + 1)  # and the credit
    left = folder / "left"
    left.mkdir()
    for end in PARTS[:-1]:
        shutil.copyfile(folder / f"used.db{end}", left / f"used.db{end}")
    shutil.copytree(folder / "used.db-owners", left / "used.db-owners")
    await store.close()
    locks.unlock("proc_dead", lock)
    return left


def changed(at: int, frame: int = -1) -> Damage:
    """One bit is another, in the header or in a frame."""

    def damage(log: Path, frame_bytes: int) -> None:
        place = at if frame < 0 else LOG_HEAD + frame * frame_bytes + at
        with log.open("r+b") as file:
            file.seek(place)
            [old] = file.read(1)
            file.seek(place)
            file.write(bytes([old ^ 0x40]))

    return damage


def cut(frames: int, more: int) -> Damage:
    return lambda log, frame_bytes: os.truncate(log, LOG_HEAD * (frames > 0) + frames * frame_bytes + more)


def replaced_header(log: Path, _: int) -> None:
    """That of another log, with a checksum that is right."""
    head = bytearray(log.read_bytes()[:LOG_HEAD])
    head[16:24] = b"\1" * 8
    first = second = 0
    for one, other in struct.iter_unpack("<II" if head[3] == 0x82 else ">II", head[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    with log.open("r+b") as file:
        file.write(head[:24] + struct.pack(">II", first, second))


def removed_with_its_index(log: Path, _: int) -> None:
    log.unlink()
    log.with_name("used.db-shm").unlink()


DAMAGES: dict[str, tuple[Damage, str]] = {
    "in a page": (changed(FRAME_HEAD + 50, 60), "has a frame that is damaged: SQLite read 6"),
    "in the checksum of a frame": (changed(17, 60), "has a frame that is damaged: SQLite read 6"),
    "in the salt of a frame": (changed(9, 60), "has a frame that has another salt: SQLite read 6"),
    "in the header": (changed(3), "The header of the write-ahead log is damaged"),
    "in the salt of the header": (changed(17), "The header of the write-ahead log is damaged"),
    "in the checksum of the header": (changed(25), "The header of the write-ahead log is damaged"),
    "another log": (replaced_header, "is not the one that the store was used with: its salt is another"),
    "cut off in a frame": (cut(60, 100), "is cut off: SQLite read"),
    "cut off behind a frame": (cut(60, 0), "is cut off: SQLite read"),
    "cut off in its header": (cut(0, 20), "is cut off in its header"),
    "empty": (cut(0, 0), "is missing or empty"),
    "missing": (lambda log, _: log.unlink(), "is missing or empty"),
    "missing with its index": (removed_with_its_index, "is missing or empty"),
}


def copied(died: Path, folder: Path) -> Path:
    return shutil.copytree(died, folder / "copy") / "used.db"


def frame_bytes_of(database: Path) -> int:
    return FRAME_HEAD + int(struct.unpack(">I", database.with_name("used.db-wal").read_bytes()[8:12])[0])


def count(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0])


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named_with_what_is_missing(died: Path, tmp_path: Path, name: str) -> None:
    """By the number that the process had noted. Without one, as of an older release, the index may still tell."""
    (damage, said), database = DAMAGES[name], copied(died, tmp_path)
    damage(database.with_name("used.db-wal"), frame_bytes_of(database))
    without_note = Path(shutil.copytree(database.parent, tmp_path / "without")) / "used.db"
    (without_note.with_name("used.db-owners") / "proc_dead").write_bytes(b"")
    lost = find_lost_commits(database)
    assert lost
    assert said in lost.damage
    left = count(database)
    assert (lost.entries, left < CHARGES) == (CHARGES + 1 - left, True)
    assert f"at least {lost.entries}" in lost.reason
    assert "cadenza ledger export" in lost.todo
    if name in {"another log", "missing with its index"}:
        assert find_lost_commits(without_note) is None
    else:
        assert "No entry is known to be missing" in find_lost_commits(without_note).reason  # type: ignore[union-attr]


def test_a_log_that_is_whole_has_lost_nothing(died: Path, tmp_path: Path) -> None:
    """Neither after a process died, nor when it was stopped, nor before there is a store."""
    database = copied(died, tmp_path)
    assert find_lost_commits(database) is None
    assert count(database) == CHARGES + 1
    assert [path.name for path in database.parent.glob("used.db-*")] == ["used.db-owners"]
    assert find_lost_commits(database) is None
    assert find_lost_commits(tmp_path / "none.db") is None
    assert not (tmp_path / "none.db").exists()


def test_a_start_says_what_was_lost(tmp_path: Path) -> None:
    """The process that died noted its newest entry twice a second, and the next start has one line about it."""
    with serving(tmp_path) as server:
        for number in range(3):
            account = ("account", "create", f"a{number}@example.org", "--credit", "1.00", "--password-stdin")
            assert run_here(tmp_path, *account, given="correct horse battery staple").returncode == 0
        locks = ProcessLocks(tmp_path / "data" / "cadenza.db")
        wait_until(lambda: locks.noted() == 4, "the newest entry to be noted", server)
        server.end(signal.SIGKILL)
    os.truncate(tmp_path / "data" / "cadenza.db-wal", 0)
    with serving(tmp_path) as server:
        server.wait_for_output(r"the store has lost commits.*\n")
        [line] = [json.loads(line) for line in server.output.splitlines() if "the store has lost commits" in line]
    assert line["level"] == "error"
    assert line["reason"].startswith("The write-ahead log is missing or empty. Missing entries")
    assert "at least" in line["reason"]


HOLD_CHECKPOINT = """
import fcntl, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT COUNT(*) FROM entries").fetchone()
index = open(sys.argv[1] + "-shm", "r+b")
fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)  # as SQLite locks it for a checkpoint
print("held", flush=True)
sys.stdin.read()
"""


def test_a_start_beside_another_says_nothing_wrong(died: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other one copies the log, after it has removed the log, and as it removes what was left behind."""
    database = copied(died, tmp_path)
    other = [sys.executable, "-c", HOLD_CHECKPOINT, str(database)]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert find_lost_commits(database) is None
    database = copied(died, tmp_path / "next")
    connect = sqlite3.connect

    def after_the_other(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        with closing(connect(database)) as connection:
            connection.execute("SELECT COUNT(*) FROM entries").fetchone()
        (database.with_name("used.db-owners") / "proc_dead").unlink()
        return cast("sqlite3.Connection", connect(*args, **kwargs))

    monkeypatch.setattr(sqlite3, "connect", after_the_other)
    assert find_lost_commits(database) is None
    monkeypatch.undo()
    (database.with_name("used.db-owners") / "removed").symlink_to("nowhere")
    assert ProcessLocks(database).noted() == 0
