"""The lock file of a process: one holder at a time, also while its former owner deletes it."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from cadenza.store.process_locks import ProcessLocks

NAME = "proc_a"


@contextlib.contextmanager
def before_next_lock(act: Callable[[], None]) -> Iterator[None]:
    """Run `act` once, in the instant before this thread calls fcntl.flock."""

    def watch(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and called is fcntl.flock:
            sys.setprofile(None)
            act()

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_lock_on_a_deleted_file_counts_for_nothing(tmp_path: Path) -> None:
    """If the former owner deletes the file between open and lock, the next owner locks a new file: nobody shares it."""
    locks, path = ProcessLocks(tmp_path / "cadenza.db"), tmp_path / "cadenza.db-owners" / NAME
    path.parent.mkdir()
    former = os.open(path, os.O_CREAT | os.O_RDWR)

    def end_former_owner() -> None:
        path.unlink()
        os.close(former)

    with before_next_lock(end_former_owner):
        lock = locks.lock(NAME)
    assert lock is not None
    assert locks.is_locked(NAME)
    assert locks.lock(NAME) is None
    locks.unlock(NAME, lock)


def test_looking_at_a_lock_leaves_its_file(tmp_path: Path) -> None:
    """`is_locked` is true for a living process only, and neither creates nor deletes a file."""
    locks = ProcessLocks(tmp_path / "cadenza.db")
    assert not locks.is_locked(NAME)
    lock = locks.lock(NAME)
    assert lock is not None
    assert locks.is_locked(NAME)
    locks.unlock(NAME, lock)
    (tmp_path / "cadenza.db-owners" / NAME).touch()
    assert not locks.is_locked(NAME)
    assert locks.names() == [NAME]
    assert locks.live() == []
