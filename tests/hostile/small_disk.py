"""Disks in trouble. As root they are real file systems; otherwise limits and modes stand in for them."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.debian import skip_or_fail

SIZE_BYTES = 4 * 2**20
FILLER = "filler"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put the folder, with the files in it, on a disk of its own of a few megabytes."""
    if os.geteuid() != 0:
        skip_or_fail("only root can mount a disk")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=0700", "tmpfs", str(folder)]
    if subprocess.run(command, check=False).returncode != 0:
        skip_or_fail("this machine mounts no disk")
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all space that is left. To be called again if some was given back."""
    with (folder / FILLER).open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def free(folder: Path) -> None:
    (folder / FILLER).unlink()


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Whatever space a program gives back is taken at once."""
    is_over = threading.Event()

    def keep_full() -> None:
        while not is_over.wait(0.005):
            fill(folder)

    fill(folder)
    keeper = threading.Thread(target=keep_full)
    keeper.start()
    try:
        yield
    finally:
        is_over.set()
        keeper.join()
        free(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written into the folder, not even by root."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    with small_disk(folder):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield
