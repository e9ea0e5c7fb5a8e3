"""What every run needs: the upstream on the load core, a work folder on a real disk, and a progress bar."""

import contextlib
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.gateways.base import Launch, free_port, wait_for_reply
from bench.gateways.install import ROOT, WORK_DIR
from bench.machine import LOAD_CORE, ProcessTree, move_to_load_core
from bench.workload import Target

READY_S = 10.0
ENDED = 143  # the exit code of a shell after SIGTERM


@contextlib.contextmanager
def upstream() -> Iterator[tuple[Path, int]]:
    """Yields a temporary folder and the upstream's port. SIGTERM stops every process that was started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    move_to_load_core()
    WORK_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=WORK_DIR) as name:
        folder, port = Path(name), free_port()
        command = [sys.executable, "-m", "bench.upstream", str(port)]
        with ProcessTree(command, LOAD_CORE, folder / "upstream.log", {"PYTHONPATH": str(ROOT)}) as tree:
            wait_for_reply(tree, Launch(command, Target(port)), time.perf_counter() + READY_S)
            yield folder, port


@contextlib.contextmanager
def progress_bar(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """Drawn only between measurements, so that it does not disturb them."""
    shown = (TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(BarColumn(), *shown, console=console, auto_refresh=False) as progress:
        task, done = progress.add_task("", total=steps), itertools.count()

        def step(name: str) -> None:
            progress.update(task, completed=next(done), description=name, refresh=True)

        yield step
        progress.update(task, completed=steps, description="done", refresh=True)
