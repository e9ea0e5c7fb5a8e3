"""What an attack costs: how long `/healthz` waits meanwhile, and the memory and CPU time of the service."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service import ServiceProcess

WEIGH_S = 0.02  # between two looks at the memory

# A process of its own, so that it does not wait for the interpreter of the attacker.
PROBE = """
import http.client, sys, threading, time
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
connection, waits_s = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=100), []
while not ended.wait(0.02) or not waits_s:
    started_s = time.perf_counter()
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    waits_s.append(time.perf_counter() - started_s)
print(max(waits_s))
"""


class Watch:
    """What was seen, complete once the block has ended."""

    longest_wait_s = 0.0
    rss_bytes = 0


@contextmanager
def watching(process: ServiceProcess) -> Iterator[Watch]:
    watch, ended = Watch(), threading.Event()

    def weigh() -> None:
        while not ended.wait(WEIGH_S):
            try:
                watch.rss_bytes = max(watch.rss_bytes, process.rss_bytes)
            except (OSError, StopIteration):  # a child ended at this moment
                continue

    probe = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(process.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    weighing = threading.Thread(target=weigh)
    weighing.start()
    try:
        yield watch
    finally:
        ended.set()
        weighing.join()
        said, _ = probe.communicate()
    watch.longest_wait_s = float(said)


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of its children, those that have ended included."""
    own = _ticks(pid)
    return (sum(own) + sum(sum(_ticks(child)[:2]) for child in children(pid))) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """The time in its own code, in the kernel, and both for its ended children."""
    return [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:15]]
