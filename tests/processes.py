"""Processes as /proc shows them: children, command lines, CPU time and memory. One that has ended has none of these."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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


def thread_cpu_ns(pid: int) -> int:
    """The CPU time of a process's living threads, as exactly as the scheduler knows it."""
    return sum(
        int(read_of(pid, f"task/{task.name}/schedstat").split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    )


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of its children, those that have ended included."""
    while True:
        found = children(pid)
        ticks = [*_ticks(pid), *(number for child in found for number in _ticks(child)[:2])]
        if found <= children(pid):  # none of them ended meanwhile, which would make it one of those that have
            return sum(ticks) / os.sysconf("SC_CLK_TCK")


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
