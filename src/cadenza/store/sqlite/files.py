"""The file of a SQLite store, and its copies: one before each migration, and one whenever the operator asks.

The copy before a migration is beside the store, cadenza.db.backup-0003-20261115T164151.120Z: the revision of its schema
and the time in UTC. Only the newest of these are kept. SQLite's backup API makes it, which starts again after each
write of another connection, so the migration must hold the write lock. Beside a service that writes, VACUUM INTO reads
one snapshot. All files are private (0600), and a copy gets its name only when it is complete.
"""

import contextlib
import errno
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

KEPT_MAX = 3
PAGES_AT_ONCE = 1024
NAME = re.compile(r"\.backup-\w+-(\d{8}T\d{6}\.\d{3}Z)")


def make_private_file(path: Path) -> None:
    """Create the file if it is missing: folder 0700, file 0600. SQLite gives its side files the same mode.

    An existing file is never opened here: closing it would drop the locks that this process holds on it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file")
    if stat.S_IMODE(mode) != 0o600:
        path.chmod(0o600)
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def back_up(source: sqlite3.Connection, database: Path, revision: str) -> Path:
    """Copy the store as `source` sees it, and delete all but the newest copies. The caller holds the write lock."""
    now = format_moment(datetime.now(UTC))
    copy, partial = (database.with_name(f"{database.name}.backup{end}") for end in (f"-{revision}-{now}", ".partial"))
    partial.unlink(missing_ok=True)
    with new_private_file(partial):
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as target:
            source.backup(target, pages=PAGES_AT_ONCE)
        partial.rename(copy)
    for old in find_backups(database)[:-KEPT_MAX]:
        old.unlink(missing_ok=True)
    return copy


def find_backups(database: Path) -> list[Path]:
    """The copies of this store, oldest first."""
    found = [
        (match[1], path)
        for path in database.parent.iterdir()
        if path.name.startswith(database.name) and (match := NAME.fullmatch(path.name[len(database.name) :]))
    ]
    return [path for _, path in sorted(found)]


def copy_snapshot(database: Path, target: Path, wait_s: float) -> None:
    """Copy what is committed at this moment, while other processes write. `target` is an empty file.

    The connection is not read-only: SQLite refuses VACUUM INTO on such a connection.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=wait_s, isolation_level=None)) as source:
        source.execute("VACUUM INTO ?", (str(target),))


@contextlib.contextmanager
def new_copy(copy: Path) -> Iterator[Path]:
    """Yield an empty file to fill. When the block succeeds, it is durable under the name `copy`.

    FileExistsError if there is a file of that name, or an unfinished one that will get it.
    """
    partial = copy.with_name(copy.name + ".partial")
    with new_private_file(partial):
        if os.path.lexists(copy):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(copy))
        yield partial
        _sync(partial)
        partial.rename(copy)
        _sync(copy.parent)


@contextlib.contextmanager
def new_private_file(path: Path) -> Iterator[None]:
    """Make an empty file for the block, mode 0600; FileExistsError if there is one. If the block fails, delete it."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def format_moment(moment: datetime) -> str:
    """For the name of a file: 20261115T164151.120Z."""
    shown = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return shown.replace("-", "").replace(":", "").replace("+0000", "Z")


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
