"""Processes as /proc shows them: children, command lines, CPU time and memory. One that has ended has none of these."""

import mmap
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cadenza.process import HUGE_PAGE_BYTES, MADV_COLLAPSE


def children(pid: int) -> set[int]:
    tasks = [task.name for task in Path(f"/proc/{pid}/task").glob("*")]
    return {int(child) for task in tasks for child in read_of(pid, f"task/{task}/children").split()}


def command_of(pid: int) -> list[bytes]:
    """Its command line, one item for each argument."""
    return read_of(pid, "cmdline").split(b"\0")


def is_alive(pid: int) -> bool:
    return _fields(pid)[:1] not in ([], [b"Z"], [b"X"])


def own_cpu_s(pid: int) -> float:
    """The CPU time of a process alone."""
    return sum(_ticks(pid)[:2]) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of its children, those that have ended included."""
    while True:
        found = children(pid)
        ticks = [*_ticks(pid), *(number for child in found for number in _ticks(child)[:2])]
        if found <= children(pid):  # none of them ended meanwhile, which would make it one of those that have
            return sum(ticks) / os.sysconf("SC_CLK_TCK")


def has_huge_pages() -> bool:
    """Whether the kernel moves memory to huge pages when it is asked to."""
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area[:] = bytes(len(area))
        with suppress(OSError):
            area.madvise(MADV_COLLAPSE)
            return True
    return False


def memory_kb(pid: int | str, kind: str) -> int:
    """How much of its memory is of this kind, by a line of `smaps_rollup`."""
    lines = read_of(pid, "smaps_rollup").decode().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")), 0)


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """These processes do nothing until the block ends: they neither answer nor close anything."""
    stopping = list(pids)
    for pid in stopping:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopping:
            os.kill(pid, signal.SIGCONT)


def read_of(pid: int | str, name: str) -> bytes:
    """A file of /proc about it; nothing once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _ticks(pid: int) -> list[int]:
    """The time in its own code, in the kernel, and both for its ended children."""
    return [int(field) for field in _fields(pid)[11:15]]


def _fields(pid: int) -> list[bytes]:
    """Those of /proc/PID/stat from the third on, which is the state: the name before it may contain spaces."""
    return read_of(pid, "stat").rpartition(b") ")[2].split()
