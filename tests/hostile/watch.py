"""What an attack costs the service: its memory, and its CPU time, which a busy machine does not stretch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.processes import cpu_s, own_cpu_s
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
