"""The files of a SQLite store: the database, private to its owner, and a locked file for each living process."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path


def make_private_file(path: Path) -> None:
    """Make the file where it is missing: folder 0700, file 0600. SQLite gives its side files the mode of the file.

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


@contextlib.asynccontextmanager
async def process_lock(database: Path, name: str) -> AsyncIterator[bool]:
    """Lock the file of a process; the operating system drops the lock when the process dies. The file goes with it."""
    folder = _lock_folder(database)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    lock = _take_lock(path)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def is_locked(database: Path, name: str) -> bool:
    """Whether a living process holds its lock. Nothing is created or deleted."""
    try:
        lock = os.open(_lock_folder(database) / name, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def process_lock_names(database: Path) -> list[str]:
    folder = _lock_folder(database)
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _take_lock(path: Path) -> int | None:
    """Lock the file at this path and return its descriptor; None where another process holds the lock.

    The former owner may delete the file between our open and our lock. A lock on a deleted file excludes nobody,
    because the next process makes a new file: try again until the locked file is the one at the path.
    """
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if _is_at(path, lock):
            return lock
        os.close(lock)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock_folder(database: Path) -> Path:
    return database.with_name(database.name + "-owners")
