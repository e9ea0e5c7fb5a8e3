"""The places on this machine: folders, a SQLite store and processes.

What cannot be read is recorded as skipped, with the reason. A file that is not there holds nothing, and is no reason.
The memory of processes is not searched: while a request is served, its content is there.
"""

import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.search import PlaceSearch
from cadenza.store.contents import PIECE_BYTES, StoredValue, ValueUnreadable
from cadenza.store.sqlite.contents import is_sqlite, open_contents

CLOCKS_S = 10.0  # by how much the clock of a server may be behind
NAMED = "a canary is in its name"  # the rest of which may be content
NO_PROC = "this system has no /proc"
PROTECTED = "the kernel keeps this user out of the process; run the audit as root"

LOG, TRACES = "log", "traces"
SQLITE_FILES = "SQLite files: database with free pages, write-ahead log, backups"
SQLITE_TABLES = "SQLite tables, every value"
ENVIRONMENT = "environment of the processes"
COMMAND_LINE = "command lines and names of the processes"
OPEN_FILES = "open files of the processes, also deleted ones"


def search_folder(canaries: CanarySet, place: str, folder: Path) -> PlaceSearch:
    """All files in a folder, with their names, and in those below it. Links are not followed."""
    search = PlaceSearch(canaries, place)

    def skip(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            search.skip(error.strerror, str(error.filename))

    for parent, folders, files in os.walk(folder, onerror=skip):
        for path in sorted(Path(parent, name) for name in (*folders, *files)):
            try:
                status = path.lstat()
                name = str(path.relative_to(folder))
                if search.add(os.fsencode(name), f"a name in {folder}"):
                    name = NAMED
                if stat.S_ISLNK(status.st_mode):
                    search.add(os.fsencode(path.readlink()), f"the link {name}")
                elif stat.S_ISREG(status.st_mode):
                    with path.open("rb") as file, search.feeding(name) as feed:
                        while piece := file.read(PIECE_BYTES):
                            feed(piece)
            except OSError as error:
                skip(error)
    return search


async def search_server(canaries: CanarySet, values: AsyncIterator[StoredValue]) -> list[PlaceSearch]:
    """All that a server has."""
    searches = dict[str, PlaceSearch]()
    async for value in values:
        search = searches.setdefault(value.place, PlaceSearch(canaries, value.place))
        where = NAMED if search.add(value.where.encode(), "a name") else value.where
        try:
            if value.read is None:
                raise ValueUnreadable(value.reason)
            with search.feeding(where) as feed:
                await value.read(feed)
        except ValueUnreadable as error:
            search.skip(error, where)
    return list(searches.values())


def search_sqlite(canaries: CanarySet, folder: Path) -> list[PlaceSearch]:
    """The folder of a SQLite store: its files, and every value of every table of the store and of its backups.

    The files alone are not enough: a value that is longer than a page is split, maybe in the middle of a canary. This
    process must have no connection to the store: closing a file that was read would drop its locks.
    """
    tables = PlaceSearch(canaries, SQLITE_TABLES)
    for path in sorted(filter(is_sqlite, folder.glob("*"))):
        try:
            with open_contents(path) as contents:
                for table in contents:
                    for row in table.rows:
                        for column, value in zip(table.columns, row, strict=True):
                            if isinstance(value, (bytes, bytearray)):
                                tables.add(bytes(value), f"{table.name}.{column}")
        except sqlite3.Error as error:
            tables.skip(error, path.name)
    return [search_folder(canaries, SQLITE_FILES, folder), tables]


def search_processes(canaries: CanarySet, pid: int, elsewhere: Path) -> list[PlaceSearch]:
    """Environment, command line and open files of a process and of all that it started.

    Open files are those that are deleted or written to, except below the folder that is searched `elsewhere`.
    """
    places = {"environ": ENVIRONMENT, "cmdline": COMMAND_LINE, "comm": COMMAND_LINE, "fd": OPEN_FILES}
    searches = {place: PlaceSearch(canaries, place) for place in places.values()}
    for one in _with_descendants(pid):
        for name, place in places.items():
            path, search = Path(f"/proc/{one}/{name}"), searches[place]
            try:
                for file in sorted(path.iterdir()) if name == "fd" else [path]:
                    target = _written_file(file, elsewhere) if name == "fd" else ""
                    if target is not None:
                        search.add(file.read_bytes(), f"process {one}, {target}".removesuffix(", "))
            except PermissionError:
                search.skip(PROTECTED, f"process {one}")
            except OSError:
                pass  # it ended
    if not Path("/proc").is_dir():
        for search in searches.values():
            search.skip(NO_PROC)
    return list(searches.values())


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):  # it ended
                found += map(int, path.read_text().split())
    return found


def _written_file(path: Path, elsewhere: Path) -> str | None:
    """The target of a file descriptor, if it is a regular file that is deleted or written to, and not `elsewhere`."""
    try:
        target, is_file = os.readlink(path), stat.S_ISREG(path.stat().st_mode)  # noqa: PTH115 keeps what it says
        flags = int((path.parents[1] / "fdinfo" / path.name).read_text().partition("flags:")[2].split()[0], 8)
    except (FileNotFoundError, IndexError):  # closed meanwhile
        return None
    is_written = flags & os.O_ACCMODE != os.O_RDONLY and not Path(target).is_relative_to(elsewhere)
    return target if is_file and (is_written or target.endswith(" (deleted)")) else None
