"""What an attack costs the service: its memory, and its CPU time, which a busy machine does not stretch."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.service import ServiceProcess

WEIGH_S = 0.02  # between two looks at the memory


class Watch:
    """What was seen, complete once the block has ended. The CPU time is that of the block."""

    rss_bytes = 0
    own_cpu_s = 0.0  # of the process that serves: while it computes, nobody else is served
    children_cpu_s = 0.0


@contextmanager
def watching(process: ServiceProcess) -> Iterator[Watch]:
    watch, ended = Watch(), threading.Event()

    def weigh() -> None:
        while not ended.wait(WEIGH_S):
            try:
                watch.rss_bytes = max(watch.rss_bytes, process.rss_bytes)
            except (OSError, StopIteration):  # a child ended at this moment
                continue

    own_before_s, all_before_s = own_cpu_s(process.pid), cpu_s(process.pid)
    weighing = threading.Thread(target=weigh)
    weighing.start()
    try:
        yield watch
    finally:
        ended.set()
        weighing.join()
    watch.own_cpu_s = own_cpu_s(process.pid) - own_before_s
    watch.children_cpu_s = cpu_s(process.pid) - all_before_s - watch.own_cpu_s


def children(pid: int) -> set[int]:
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that ended at this moment
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it ended at this moment
        return False


def own_cpu_s(pid: int) -> float:
    """The CPU time of a process alone."""
    return sum(_ticks(pid)[:2]) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of its children, those that have ended included."""
    while True:
        with suppress(OSError):  # a child ended at this moment: now it is among the ended ones
            working = [sum(_ticks(child)[:2]) for child in children(pid)]
            return (sum(_ticks(pid)) + sum(working)) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """The time in its own code, in the kernel, and both for its ended children."""
    return [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:15]]
