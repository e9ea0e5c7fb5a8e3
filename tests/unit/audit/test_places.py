"""A leak of each kind that is planted in a file, a store or a process is found, and its place is named."""

import contextlib
import gzip
import os
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.audit.needles import AuditNeedle, Needles
from cadenza.audit.places import (
    OLDER,
    SQLITE_BACKUPS,
    SQLITE_FILES,
    SQLITE_TABLES,
    search_bytes,
    search_folder,
    search_sqlite,
)
from cadenza.audit.processes import (
    COMMAND_LINE,
    ENVIRONMENT,
    OPEN_FILES,
    search_machine,
    search_processes,
)
from cadenza.audit.search import Searched
from tests.migrated import copy_migrated_store

FREE_PAGES, LOG = SQLITE_FILES[""], SQLITE_FILES["-wal"]
HANDED_TO = "the kernel hands them to a program, "
Found = set[tuple[str, str, str]]
CHILD = """
import os, subprocess, sys
memory = os.memfd_create("pages")
os.write(memory, os.environ.pop("IN_MEMORY").encode("utf-16"))
log = open(sys.argv[1], "w")
log.write(os.environ.pop("IN_LOG"))
log.flush()
deleted = open(sys.argv[1] + ".tmp", "w")
deleted.write(os.environ.pop("IN_DELETED"))
deleted.flush()
os.unlink(deleted.name)
child = subprocess.Popen([sys.executable, "-c", "input()", os.environ.pop("IN_ARGUMENTS")], stdin=subprocess.PIPE,
                         env={"SECRET": os.environ.pop("IN_ENVIRONMENT")})
child.stdin.write(b"")
print("ready", flush=True)
input()
child.kill()
"""


@pytest.fixture
def needles() -> Needles:
    return Needles()


@pytest.fixture
def needle(needles: Needles) -> AuditNeedle:
    return needles.make("a user message")


def found_in(results: list[Searched]) -> Found:
    return {(hit.place, hit.where, hit.form) for searched in results for hit in searched.hits}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "cadenza.db"
    copy_migrated_store(path)
    return path


@contextlib.contextmanager
def changing(store: Path, *, checkpoints: bool = True) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE leaks (text TEXT, data BLOB)")
        yield connection
        if checkpoints:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_a_clean_store_has_no_hits(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A new store is searched whole, without a hit, nothing is skipped, and no file is left beside it."""
    before = sorted(store.parent.iterdir())
    results = search_sqlite(needles, store)
    assert found_in(results) == set()
    assert [searched.skipped for searched in results] == [[]] * len(results)
    assert results[0].size_bytes == store.stat().st_size
    assert sum(searched.size_bytes for searched in results if searched.place == SQLITE_TABLES) > 1000
    assert sorted(store.parent.iterdir()) == before


def test_a_row_is_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A row is found in the file and in its column."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (needle.text,))
    assert found_in(search_sqlite(needles, store)) == {
        (FREE_PAGES, "cadenza.db", "plain"),
        (SQLITE_TABLES, "leaks.text", "plain"),
    }


def test_a_deleted_row_is_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A deleted row is in no table and still in a free page."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (needle.text,))
        connection.execute("DELETE FROM leaks")
    assert found_in(search_sqlite(needles, store)) == {(FREE_PAGES, "cadenza.db", "plain")}


def test_the_write_ahead_log_is_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A row that was written and deleted is in the log of a store that is in use."""
    with changing(store, checkpoints=False) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (needle.text,))
        connection.execute("DELETE FROM leaks")
        assert (LOG, "cadenza.db-wal", "plain") in found_in(search_sqlite(needles, store))


def test_a_needle_that_is_split_over_pages_is_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A needle in two pages of a long value, which are in other places of the file, is found by SQL."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (600 * needle.word,))
    hits = [hit for searched in search_sqlite(needles, store) for hit in searched.hits]
    assert 500 < sum(hit.place == FREE_PAGES for hit in hits) < 600  # all but those at the ends of pages
    assert sum(hit.place == SQLITE_TABLES for hit in hits) == 600


def test_compressed_blobs_are_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """Gzip over several pages is found in its column."""
    packed = gzip.compress(os.urandom(9000).hex().encode() + needle.text.encode())
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (NULL, ?)", (packed,))
    assert found_in(search_sqlite(needles, store)) == {(SQLITE_TABLES, "leaks.data", "plain in gzip")}


def test_backups_are_found(needles: Needles, needle: AuditNeedle, store: Path) -> None:
    """A copy of the store beside it is searched too, as a file and by SQL, and gets no side files."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (needle.text,))
    backup = store.with_name("cadenza.db.backup-0003-20261115T164151.120Z")
    store.rename(backup)
    copy_migrated_store(store)
    results = search_sqlite(needles, store)
    assert found_in(results) == {(SQLITE_BACKUPS, backup.name, "plain"), (SQLITE_BACKUPS, "leaks.text", "plain")}
    assert sorted(path.name for path in store.parent.iterdir()) == [store.name, backup.name]


def test_a_damaged_store_is_said(needles: Needles, needle: AuditNeedle, tmp_path: Path) -> None:
    """A file that SQLite cannot read is searched as a file, and the rest is listed as skipped."""
    store = tmp_path / "cadenza.db"
    store.write_bytes(needle.word.encode() + bytes(5000))
    results = search_sqlite(needles, store)
    assert found_in(results) == {(FREE_PAGES, "cadenza.db", "plain")}
    assert [searched.skipped for searched in results if searched.skipped] == [[f"{store}: file is not a database"]]


def test_folders_are_searched_with_names_and_links(needles: Needles, needle: AuditNeedle, tmp_path: Path) -> None:
    """UTF-16, a member of a document, the name of a file and the target of a link are found; links are not followed."""
    word = needle.word
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "x.tmp").write_bytes(needle.text.encode("utf-16"))
    (tmp_path / f"{word}.pdf").write_text(word)
    (tmp_path / "link").symlink_to(word)
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "a.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", needle.text)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_text(word)
    searched = search_folder(needles, "temp", tmp_path, leave_out=[tmp_path / "elsewhere"])
    assert found_in([searched]) == {
        ("temp", "deep/er/x.tmp", "UTF-16"),
        ("temp", f"a name in {tmp_path}", "plain"),
        ("temp", "a file with a needle in its name", "plain"),
        ("temp", "the link link", "plain"),
        ("temp", "a.docx", "plain in ZIP"),
    }


def test_older_files_are_left_out(needles: Needles, needle: AuditNeedle, tmp_path: Path) -> None:
    """A file that did not change since the needles were made is counted and not read."""
    (tmp_path / "old").write_text(needle.word)
    searched = search_folder(needles, "temp", tmp_path, since_s=time.time() + 3600)
    assert (searched.hits, searched.skipped, searched.size_bytes) == ([], [OLDER], 0)
    assert found_in([search_folder(needles, "temp", tmp_path, since_s=time.time())]) == {("temp", "old", "plain")}


def test_folders_that_cannot_be_read_are_said(needles: Needles, tmp_path: Path) -> None:
    """A folder that is a file is skipped with a reason; one that is not there holds nothing."""
    (tmp_path / "file").write_text("")
    assert search_folder(needles, "data", tmp_path / "file").skipped == [f"{tmp_path / 'file'}: Not a directory"]
    assert search_folder(needles, "data", tmp_path / "none").skipped == []


def test_processes_are_searched(needles: Needles, tmp_path: Path) -> None:
    """Environment and arguments of a child, memory files, deleted files and files in other folders are found."""
    places = ("IN_MEMORY", "IN_LOG", "IN_DELETED", "IN_ARGUMENTS", "IN_ENVIRONMENT")
    planted = {place: needles.make(place).word for place in places}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=planted) as process:
        assert process.stdout
        process.stdout.readline()
        results = search_processes(needles, [process.pid])
        known = search_processes(needles, [process.pid], elsewhere=[tmp_path])
        process.communicate(b"\n")
    found = {(hit.needle, hit.place, hit.form) for searched in results for hit in searched.hits}
    of_first = {(place, ENVIRONMENT, "plain") for place in places}  # as it was started
    assert found == {
        *of_first,
        ("IN_MEMORY", OPEN_FILES, "UTF-16"),
        ("IN_LOG", OPEN_FILES, "plain"),
        ("IN_DELETED", OPEN_FILES, "plain"),
        ("IN_ARGUMENTS", COMMAND_LINE, "plain"),
    }
    assert len([hit for hit in results[0].hits if hit.needle == "IN_ENVIRONMENT"]) == 2
    assert {hit.needle for hit in known[2].hits} == {"IN_MEMORY", "IN_DELETED"}
    assert search_processes(needles, [process.pid])[0].size_bytes == 0


@pytest.mark.parametrize(
    ("pattern", "found", "skipped"),
    [
        ("core.%p\n", {"core.17"}, []),
        ("|/usr/lib/systemd/systemd-coredump %P %u\n", {"core.cadenza"}, []),
        ("|/opt/catcher %P\n", set(), [f"{HANDED_TO}catcher, and where that puts them is not known"]),
    ],
)
def test_the_machine_is_searched(
    needles: Needles, needle: AuditNeedle, tmp_path: Path, pattern: str, found: set[str], skipped: list[str]
) -> None:
    """Core files, shared memory and swap: searched, or named with the reason why not."""
    files = {
        "proc/sys/kernel/core_pattern": pattern,
        "proc/swaps": "Filename Type\n/dev/sda2 partition\n",
        "dev/shm/segment": needle.text,
        "var/lib/systemd/coredump/core.cadenza": needle.text,
        "work/core.17": needle.text,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    cores, shared, swap = search_machine(needles, time.time(), tmp_path / "work", tmp_path)
    assert {hit.where for hit in shared.hits} == {"segment"}
    assert ({hit.where for hit in cores.hits}, cores.skipped) == (found, skipped)
    assert swap.skipped == ["/dev/sda2: pages of all programs, which are not searched; encrypt it or turn it off"]


def test_bytes_of_the_caller_are_searched(needles: Needles, needle: AuditNeedle) -> None:
    """A label in the text of /metrics is found."""
    text = f'cadenza_requests_total{{model="{needle.word}"}} 1.0'
    assert found_in([search_bytes(needles, "Metrics", text.encode())]) == {("Metrics", "", "plain")}
