"""A service under valgrind's callgrind, which counts the instructions of its process, but not of its children."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.gateways.base import Launch
from bench.gateways.install import ROOT
from bench.machine import CannotRun, ProcessStat, ProcessTree

TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
COMMAND_S = 20.0
READY_S = 100.0
STOPPING_S = 0.0005
POLL_S = 0.002
IDLE_LOOKS = 5
STEADY = {"PYTHONHASHSEED": "0"}  # dicts and sets have the same order in every run


class Counter:
    """Counts from `begin` on. Callgrind takes commands of `vgdb`, which needs to ptrace."""

    def __init__(self, tree: ProcessTree, profile: Path) -> None:
        self._tree = tree
        self._profile = profile
        self._dumps = itertools.count(1)
        self._is_on = False

    async def begin(self) -> None:
        """Begin to count. Until then the program runs ten times as fast."""
        await self._tell("instrumentation", "on")
        self._is_on = True

    async def read(self) -> int:
        """What was counted since the last time, once the service has nothing left to do. 0 before `begin`."""
        if not self._is_on:
            return 0
        await self._wait_until_idle()
        await self._tell("dump")
        dump = self._profile.with_name(f"{self._profile.name}.{next(self._dumps)}")
        found = TOTAL.search(dump.read_text())
        if not found:
            raise CannotRun(f"callgrind wrote no total to {dump}")
        return int(found[1])

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self._tree.pid, signal.SIGSTOP)
        while not ProcessStat(self._tree.pid).is_stopped:
            time.sleep(STOPPING_S)
        try:
            yield
        finally:
            os.kill(self._tree.pid, signal.SIGCONT)

    async def _wait_until_idle(self) -> None:
        """Wait until no thread has run for IDLE_LOOKS looks. One that waits for a core counts as running."""
        quiet = 0
        while quiet < IDLE_LOOKS:
            await asyncio.sleep(POLL_S)
            quiet = quiet + 1 if self._tree.is_sleeping else 0

    async def _tell(self, *command: str) -> None:
        none, pipe, pid = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, f"--pid={self._tree.pid}"
        vgdb = await asyncio.create_subprocess_exec("vgdb", pid, *command, stdout=none, stderr=pipe)
        try:
            async with asyncio.timeout(COMMAND_S):
                _, said = await vgdb.communicate()
        except TimeoutError:
            vgdb.kill()
            raise CannotRun(f"vgdb did not reach valgrind in {COMMAND_S:.0f} s: may it ptrace?") from None
        if vgdb.returncode:
            raise CannotRun(f"vgdb: {said.decode().strip()[-200:]}")


@contextlib.asynccontextmanager
async def counted(launch: Launch, folder: Path, source: Path) -> AsyncIterator[Counter]:
    """Run the service of the source folder, for which time stands still."""
    profile = folder / "callgrind"
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes", "--quiet"]
    command = [*valgrind, f"--callgrind-out-file={profile}", sys.executable, "-m", "bench.still_clock"]
    env = STEADY | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    with ProcessTree([*command, *launch.command[1:]], None, folder / "process.log", env) as tree:
        await asyncio.to_thread(tree.wait_for_port, launch.target.port, READY_S)
        yield Counter(tree, profile)
