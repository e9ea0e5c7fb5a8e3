"""The lock file of a process: one holder at a time, also while its former owner deletes it."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from cadenza.store.files import is_locked, process_lock, process_lock_names

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


async def test_a_lock_on_a_deleted_file_counts_for_nothing(tmp_path: Path) -> None:
    """If the former owner deletes the file between open and lock, the next owner locks a new file: nobody shares it."""
    database = tmp_path / "cadenza.db"
    async with contextlib.AsyncExitStack() as stack:
        async with process_lock(database, NAME) as is_owner:
            assert is_owner
            former = tmp_path / "cadenza.db-owners" / NAME
        descriptor = os.open(former, os.O_CREAT | os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)

        def end_former_owner() -> None:
            former.unlink()
            os.close(descriptor)

        with before_next_lock(end_former_owner):
            assert await stack.enter_async_context(process_lock(database, NAME))
        assert is_locked(database, NAME)
        async with process_lock(database, NAME) as is_second:
            assert not is_second


async def test_looking_at_a_lock_leaves_its_file(tmp_path: Path) -> None:
    """`is_locked` is true for a living process only, and neither creates nor deletes a file."""
    database = tmp_path / "cadenza.db"
    assert not is_locked(database, NAME)
    async with process_lock(database, NAME):
        assert is_locked(database, NAME)
    (tmp_path / "cadenza.db-owners" / NAME).touch()
    assert not is_locked(database, NAME)
    assert process_lock_names(database) == [NAME]
