"""What every run needs: an upstream on the load core, a work folder on a real disk, and lines about its progress."""

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.gateways.base import Launch, free_port, wait_for_reply
from bench.gateways.install import ROOT, WORK_DIR
from bench.machine import LOAD_CORE, ProcessTree, move_to_load_core
from bench.workload import Target

ENDED = 143  # the exit code of a shell after SIGTERM
BEGAN_S = time.monotonic()


@contextlib.contextmanager
def upstream() -> Iterator[tuple[Path, int]]:
    """Yields a temporary folder and the upstream's port. SIGTERM stops every process that was started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    move_to_load_core()
    WORK_DIR.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=WORK_DIR)))
        yield folder, stack.enter_context(running_upstream("bench.upstream", folder))


@contextlib.contextmanager
def running_upstream(module: str, folder: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", module, str(port)]
    with ProcessTree(command, LOAD_CORE, folder / f"{module}.log", {"PYTHONPATH": str(ROOT)}) as tree:
        wait_for_reply(tree, Launch(command, Target(port)))
        yield port


def step(name: str) -> None:
    """Say what is measured next: nothing is written while it is, which would disturb it."""
    sys.stderr.write(f"{time.monotonic() - BEGAN_S:6.0f} s  {name}\n")
