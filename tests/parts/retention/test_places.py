"""A leak of each kind that is planted in a file, a store or a process is found, and its place is named."""

import contextlib
import gzip
import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cadenza.parts.retention.canaries import Canary, CanarySet
from cadenza.parts.retention.places import (
    COMMAND_LINE,
    ENVIRONMENT,
    NAMED,
    OPEN_FILES,
    SQLITE_FILES,
    SQLITE_TABLES,
    search_folder,
    search_processes,
    search_sqlite,
)
from cadenza.parts.retention.search import PlaceSearch
from tests.migrated import copy_migrated_store

IN_TABLE = (SQLITE_TABLES, "leaks.text", "plain")
CHILD = """
import os, subprocess, sys
memory = os.memfd_create("pages")
read = open(sys.argv[1] + ".read")
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
def canaries() -> CanarySet:
    return CanarySet()


@pytest.fixture
def canary(canaries: CanarySet) -> Canary:
    return canaries.make("a user message")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "cadenza.db"
    copy_migrated_store(path)
    return path


def found_in(searches: Iterable[PlaceSearch]) -> set[tuple[str, str, str]]:
    return {(search.place, hit.where, hit.form) for search in searches for hit in search.hits}


@contextlib.contextmanager
def changing(store: Path, *, checkpoints: bool = True) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE leaks (text TEXT, data BLOB)")
        yield connection
        if checkpoints:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def in_file(name: str) -> tuple[str, str, str]:
    return (SQLITE_FILES, name, "plain")


def test_a_clean_store_has_no_hits(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A new store is searched whole, without a hit, nothing is skipped, and no file is left beside it."""
    files, tables = search_sqlite(canaries, store.parent)
    assert found_in([files, tables]) == set()
    assert (files.skipped, tables.skipped) == ([], [])
    assert files.size_bytes == store.stat().st_size + len(store.name)
    assert tables.size_bytes > 1000
    assert list(store.parent.iterdir()) == [store]


def test_rows_are_found(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A row is found in the file and in its column; once it is deleted, in a free page."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (canary.text,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert found_in(search_sqlite(canaries, store.parent)) >= {in_file("cadenza.db"), IN_TABLE}
        connection.execute("DELETE FROM leaks")
    assert found_in(search_sqlite(canaries, store.parent)) == {in_file("cadenza.db")}


def test_the_write_ahead_log_is_found(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A row that was written and deleted is in the log of a store that is in use."""
    with changing(store, checkpoints=False) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (canary.text,))
        connection.execute("DELETE FROM leaks")
        assert in_file("cadenza.db-wal") in found_in(search_sqlite(canaries, store.parent))


def test_a_canary_that_is_split_over_pages_is_found(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A canary in two pages of a long value, which are in other places of the file, is found by SQL."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (600 * canary.word,))
    files, tables = search_sqlite(canaries, store.parent)
    assert 500 < files.hits.total() < 600  # all but those at the ends of pages
    assert tables.hits.total() == 600


def test_compressed_blobs_are_found(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """Gzip over several pages is found in its column."""
    packed = gzip.compress(os.urandom(9000).hex().encode() + canary.text.encode())
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (NULL, ?)", (packed,))
    assert found_in(search_sqlite(canaries, store.parent)) == {(SQLITE_TABLES, "leaks.data", "plain in gzip")}


def test_backups_are_found(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A copy of the store beside it is searched too, as a file and by SQL, and gets no side files."""
    with changing(store) as connection:
        connection.execute("INSERT INTO leaks VALUES (?, NULL)", (canary.text,))
    backup = store.with_name("cadenza.db.backup-0003-20261115T164151.120Z")
    store.rename(backup)
    copy_migrated_store(store)
    assert found_in(search_sqlite(canaries, store.parent)) == {in_file(backup.name), IN_TABLE}
    assert sorted(path.name for path in store.parent.iterdir()) == [store.name, backup.name]


def test_a_damaged_store_is_told(canaries: CanarySet, canary: Canary, store: Path) -> None:
    """A store whose pages SQLite cannot read is searched as a file, and the rest is listed as skipped."""
    store.write_bytes(store.read_bytes()[:100] + canary.word.encode() + bytes(5000))
    files, tables = search_sqlite(canaries, store.parent)
    assert found_in([files, tables]) == {in_file("cadenza.db")}
    assert [reason.partition(":")[0] for reason in tables.skipped] == ["cadenza.db"]


def test_folders_are_searched_with_names_and_links(canaries: CanarySet, canary: Canary, tmp_path: Path) -> None:
    """UTF-16, a member of a document, the name of a file and the target of a link are found; links are not followed."""
    word = canary.word
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "x.tmp").write_bytes(canary.text.encode("utf-16"))
    (tmp_path / f"{word}.pdf").write_text(word)
    (tmp_path / "link").symlink_to(word)
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "a.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", canary.text)
    searched = search_folder(canaries, "temp", tmp_path)
    assert found_in([searched]) == {
        ("temp", "deep/er/x.tmp", "UTF-16"),
        ("temp", f"a name in {tmp_path}", "plain"),
        ("temp", NAMED, "plain"),
        ("temp", "the link link", "plain"),
        ("temp", "a.docx", "plain in ZIP"),
    }


def test_folders_that_cannot_be_read_are_said(canaries: CanarySet, tmp_path: Path) -> None:
    """A folder that is a file is skipped with a reason; one that is not there holds nothing."""
    (tmp_path / "file").write_text("")
    assert search_folder(canaries, "data", tmp_path / "file").skipped == [f"{tmp_path / 'file'}: Not a directory"]
    assert search_folder(canaries, "data", tmp_path / "none").skipped == []


def test_processes_are_searched(canaries: CanarySet, tmp_path: Path) -> None:
    """Environment and arguments of a child, memory files, deleted files and files in other folders are found."""
    names = ("IN_MEMORY", "IN_LOG", "IN_DELETED", "IN_ARGUMENTS", "IN_ENVIRONMENT")
    planted = {name: canaries.make(name).word for name in names}
    (tmp_path / "log.read").write_text(canaries.make("in a file that is only read").word)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=planted) as process:
        assert process.stdout
        process.stdout.readline()
        searches = search_processes(canaries, process.pid, Path("/nowhere"))
        known = search_processes(canaries, process.pid, tmp_path)
        process.communicate(b"\n")
    found = {(hit.canary, search.place, hit.form) for search in searches for hit in search.hits}
    assert found == {
        *((name, ENVIRONMENT, "plain") for name in names),  # of the first process, as it was started
        ("IN_MEMORY", OPEN_FILES, "UTF-16"),
        ("IN_LOG", OPEN_FILES, "plain"),
        ("IN_DELETED", OPEN_FILES, "plain"),
        ("IN_ARGUMENTS", COMMAND_LINE, "plain"),
    }
    assert sum(hit.canary == "IN_ENVIRONMENT" for hit in searches[0].hits) == 2
    assert {hit.canary for hit in known[-1].hits} == {"IN_MEMORY", "IN_DELETED"}
    assert search_processes(canaries, process.pid, tmp_path)[0].size_bytes == 0
