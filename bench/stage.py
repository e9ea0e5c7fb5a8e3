"""What every run stands on: the upstream on the load's core, a folder on a real disk, and a bar that shows the way."""

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

from bench.asking import Target
from bench.gateways.base import Launch, free_port, wait_for_reply
from bench.gateways.install import PLACE, ROOT
from bench.machine import LOAD_CORE, Tree, take_load_core

READY_S = 10.0
ENDED = 143  # as a shell has it for SIGTERM


@contextlib.contextmanager
def upstream() -> Iterator[tuple[Path, int]]:
    """The folder, which goes at the end, and the upstream's port. A SIGTERM ends all that was started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    take_load_core()
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=PLACE) as name:
        folder, port = Path(name), free_port()
        command = [sys.executable, "-m", "bench.upstream", str(port)]
        with Tree(command, LOAD_CORE, folder / "upstream.log", {"PYTHONPATH": str(ROOT)}) as tree:
            wait_for_reply(tree, Launch(command, Target(port)), time.perf_counter() + READY_S)
            yield folder, port


@contextlib.contextmanager
def progress_bar(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """Drawn only between measurements, so that it disturbs none."""
    shown = (TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(BarColumn(), *shown, console=console, auto_refresh=False) as progress:
        task, done = progress.add_task("", total=steps), itertools.count()

        def step(name: str) -> None:
            progress.update(task, completed=next(done), description=name, refresh=True)

        yield step
        progress.update(task, completed=steps, description="done", refresh=True)
