"""The places of files: folders, the files of a SQLite store, and bytes that the caller already has.

Each function returns what was searched of its place. What cannot be read is in `skipped`, with the reason. A file that
is not there holds nothing, and is no reason.
"""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cadenza.audit.needles import Needles
from cadenza.audit.search import PlaceSearch, Searched
from cadenza.store.sqlite.contents import is_sqlite, open_contents

CLOCKS_S = 10.0  # by how much the clock of a file server may be behind
FOLDER_FILES_MAX = 500_000
FOLDER_BYTES_MAX = 8 * 2**30
OLDER = "files that did not change since the needles were made, which hold none"
SQLITE_FILES = {
    "": "SQLite database file, with free pages",
    "-wal": "SQLite write-ahead log",
    "-shm": "SQLite index of the write-ahead log",
    "-journal": "SQLite rollback journal",
}
SQLITE_TABLES = "SQLite tables, every value"
SQLITE_BACKUPS = "SQLite backups"


def search_bytes(needles: Needles, place: str, data: bytes | Iterable[bytes]) -> Searched:
    """Bytes that the caller has: a log that it captured, the text of /metrics, traces that it received."""
    search = PlaceSearch(needles, place)
    search.add_pieces((data,) if isinstance(data, bytes) else data)
    return search.result()


def search_file(needles: Needles, place: str, path: Path) -> Searched:
    """One file of any size."""
    search = PlaceSearch(needles, place)
    add_path(search, path, path.name)
    return search.result()


def search_folder(
    needles: Needles, place: str, folder: Path, since_s: float | None = None, leave_out: Sequence[Path] = ()
) -> Searched:
    """All files under a folder, with their names. Links are not followed.

    `since_s` (Unix time) leaves out files that did not change after it: they are older than the needles. `leave_out`
    names files and folders that the caller searches as another place.
    """
    search = PlaceSearch(needles, place)
    left_out = {os.path.realpath(path) for path in leave_out}
    root, files, size_bytes = os.path.realpath(folder), 0, 0
    for path, status in _walk(search, root, left_out):
        if since_s is not None and status.st_ctime < since_s - CLOCKS_S:
            search.skip(OLDER)
            continue
        name = os.path.relpath(path, root)
        if search.add(os.fsencode(name), f"a name in {folder}"):
            name = "a file with a needle in its name"  # the rest of it may be content
        if stat.S_ISLNK(status.st_mode):
            search.add(os.fsencode(os.readlink(path)), f"the link {name}")  # noqa: PTH115
        elif files >= FOLDER_FILES_MAX or size_bytes + status.st_size > FOLDER_BYTES_MAX:
            search.skip(f"beyond {FOLDER_FILES_MAX} files or {FOLDER_BYTES_MAX // 2**30} GiB", name)
        elif stat.S_ISREG(status.st_mode):
            files, size_bytes = files + 1, size_bytes + status.st_size
            add_path(search, Path(path), name)
    return search.result()


def _walk(search: PlaceSearch, folder: str, left_out: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Everything under a folder, with its status."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        search.skip(str(error.strerror), folder)
        return
    for entry in found:
        if entry.path in left_out:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            search.skip(str(error.strerror), entry.path)
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(search, entry.path, left_out)
        yield entry.path, status


def add_path(search: PlaceSearch, path: Path, where: str) -> None:
    """Search one file, unless it is gone."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 a pipe would wait
            search.add_file(file, where)
    except FileNotFoundError:
        pass
    except OSError as error:
        search.skip(str(error.strerror), str(path))


def search_sqlite(needles: Needles, database: Path) -> list[Searched]:
    """A SQLite store: its files with deleted rows in free pages, every value of every table, and backups beside it.

    The files alone are not enough: a value that is longer than a page is split, maybe in the middle of a needle. This
    process must have no connection to the store: closing the file that was read would drop its locks.
    """
    found = [search_file(needles, place, Path(f"{database}{end}")) for end, place in SQLITE_FILES.items()]
    backups = PlaceSearch(needles, SQLITE_BACKUPS)
    for backup in sorted(database.parent.glob(f"{database.stem}*{database.suffix}*")):
        if backup not in {Path(f"{database}{end}") for end in SQLITE_FILES} and backup.is_file():
            add_path(backups, backup, backup.name)
            if is_sqlite(backup):
                _add_tables(backups, backup)
    tables = PlaceSearch(needles, SQLITE_TABLES)
    _add_tables(tables, database)
    return [*found, tables.result(), backups.result()]


def _add_tables(search: PlaceSearch, database: Path) -> None:
    try:
        with open_contents(database) as tables:
            for table in tables:
                try:
                    search.add_rows(table.name, table.columns, table.rows)
                except sqlite3.Error as error:
                    search.skip(str(error), f"table {table.name}")
    except sqlite3.Error as error:
        search.skip(str(error), str(database))
