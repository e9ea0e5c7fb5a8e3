"""Count the user-mode instructions of a running process tree with `perf stat`, if the machine and its kernel allow it.

The count includes the warm-up of a load, so it is a little too high, by the same amount on both sides.
"""

import contextlib
import re
import shutil
import signal
import subprocess
from typing import Self

from bench.machine import ProcessTree

EVENT = "instructions:u"
COUNT = re.compile(r"^(\d+),[^,]*,instructions", re.MULTILINE)
READY_S = 0.3
END_S = 10.0


class Instructions:
    """`with Instructions(tree, is_on=True) as counted` counts until the block ends."""

    def __init__(self, tree: ProcessTree, *, is_on: bool) -> None:
        self._tree = tree
        self._is_on = is_on
        self._perf: subprocess.Popen[str] | None = None
        self.total: int | None = None

    def __enter__(self) -> Self:
        if self._is_on:
            pids = ",".join(str(pid) for pid in self._tree.pids)
            command = ["perf", "stat", "-x", ",", "-e", EVENT, "-p", pids]
            self._perf = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._perf.wait(READY_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._perf is None:
            return
        self._perf.send_signal(signal.SIGINT)
        try:
            _, said = self._perf.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._perf.kill()
            return
        counts = [int(count) for count in COUNT.findall(said)]
        self.total = sum(counts) or None

    def per(self, served: int) -> float | None:
        return self.total / served if self.total and served else None


def unavailable_reason() -> str | None:
    """Why instructions cannot be counted on this machine, or None if they can."""
    if not shutil.which("perf"):
        return "perf is not installed"
    command = ["perf", "stat", "-x", ",", "-e", EVENT, "true"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    if COUNT.search(said):
        return None
    return f"perf reports {said.partition(',')[0].strip()[:100] or 'nothing'}"
