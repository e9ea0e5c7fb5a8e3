"""The files of a SQLite store: the database, private to its owner, and a locked file for each living process."""

import contextlib
import errno
import fcntl
import os
import stat
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


def lock_process(database: Path, name: str) -> int | None:
    """Lock the file of this process until the descriptor is closed or the process dies.

    None where another process has the file locked in this instant, to find out whether its owner is alive.
    """
    path = _lock_folder(database) / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        if not _try_lock(lock):
            return None
        if _is_file_at(path, lock):
            return lock
        os.close(lock)  # the file was removed between the two steps: nobody would find this lock


def unlock_process(database: Path, name: str, lock: int) -> None:
    (_lock_folder(database) / name).unlink(missing_ok=True)
    os.close(lock)


def is_unlocked(database: Path, name: str) -> bool:
    """Whether no process has this file locked. The file is removed then: a name is used only once."""
    path = _lock_folder(database) / name
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    if not _try_lock(lock):
        return False
    path.unlink(missing_ok=True)
    os.close(lock)
    return True


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


def lock_names(database: Path) -> list[str]:
    """The names that have a file, locked or left behind."""
    folder = _lock_folder(database)
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


def _is_file_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock_folder(database: Path) -> Path:
    return database.with_name(database.name + "-owners")
