"""Lock files beside a SQLite database, one for each live process. The kernel drops the lock of a process that dies.

A process notes in its file the number of the newest entry, so that a start finds out if commits were lost since.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class ProcessLocks:
    """The lock files of one database, by the names of their processes."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + "-owners")

    def lock(self, name: str) -> int | None:
        """Lock the file of this process until the returned descriptor is closed or the process dies.

        None if another process has it locked at this moment, to find out whether its owner is alive.
        """
        path = self._folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        while True:
            lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            if not _try_lock(lock):
                return None
            if _is_file_at(path, lock):
                return lock
            os.close(lock)  # the file was removed between the two steps: nobody would find this lock

    def unlock(self, name: str, lock: int) -> None:
        (self._folder / name).unlink(missing_ok=True)
        os.close(lock)

    def remove_if_free(self, name: str) -> bool:
        """Remove the file unless a process has it locked, and return whether it is gone. A name is used only once."""
        path = self._folder / name
        try:
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        if not _try_lock(lock):
            return False
        path.unlink(missing_ok=True)
        os.close(lock)
        return True

    def is_locked(self, name: str) -> bool:
        """Whether a live process holds the lock. No file is created or removed."""
        try:
            lock = os.open(self._folder / name, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def noted(self) -> int:
        """The highest number in the files, also in those that were left behind."""
        texts = list[str]()
        for name in self.names():
            with suppress(FileNotFoundError):  # another process has removed it meanwhile
                texts.append((self._folder / name).read_text(errors="replace"))
        return max((int(text) for text in texts if text.isdecimal()), default=0)

    def names(self) -> list[str]:
        """All names that have a file, locked or left behind."""
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def live(self) -> list[str]:
        """The names of the live processes."""
        return sorted(filter(self.is_locked, self.names()))


def note(lock: int, number: int) -> None:
    """Write a number into the file of this process."""
    os.pwrite(lock, b"%020d" % number, 0)


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
