"""Processes and cores: pin a process to a core, read its cost from /proc, and stop it.

Each program starts in a session of its own, so its process tree is found, measured and stopped by session id, even if
it forks. A child with a session of its own is measured too, and ends with its parent. A started program is always
stopped: with SIGTERM, and after END_S with SIGKILL.
"""

import contextlib
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

GATEWAY_CORE = 0
LOAD_CORE = 1
END_S = 5.0
POLL_S = 0.01
SETTLE_S = 30.0
QUIET_S = 0.5
QUIET_SHARE = 0.05
NO_PROXY = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
FILES_WANTED = 65_536
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CannotRun(Exception):
    """A gateway or a tool cannot run on this machine. The message says why and goes into the report."""


class ProcessStat:
    """A process, mostly by /proc/PID/stat: session, CPU time including finished children, resident memory."""

    def __init__(self, pid: int) -> None:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.pid = pid
        self.is_dead = after_name[0] == "Z"
        self.is_stopped = after_name[0] == "T"
        self.parent = int(after_name[1])
        self.session = int(after_name[3])
        of_children_s = sum(map(int, after_name[13:15])) / TICKS_PER_S
        self.cpu_s = time.clock_gettime(cpu_clock(pid)) + of_children_s  # /proc has it in ticks of 10 ms
        self.rss_bytes = int(after_name[21]) * PAGE_BYTES


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as clock_getcpuclockid(3) makes it: bits of the pid, and 2 for the kind."""
    return ~pid << 3 | 2


class ProcessTree:
    """A process and all of its descendants, pinned to one core, or on every core if it is None."""

    def __init__(
        self, command: Sequence[str | Path], core: int | None, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with on_all_cores() if core is None else on_core(core), log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(os.environ) | NO_PROXY | dict(env or {}),
                cwd=log.parent,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_sleeping(self) -> bool:
        """Whether all threads of the process wait for something other than a core."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(thread.read_text().rpartition(")")[2].split()[0] == "S" for thread in threads)

    @property
    def pids(self) -> list[int]:
        return [stat.pid for stat in self._stats()]

    @property
    def cpu_s(self) -> float:
        """User and system time of the whole tree so far."""
        return sum(stat.cpu_s for stat in self._stats())

    @property
    def rss_mb(self) -> float:
        return sum(stat.rss_bytes for stat in self._stats()) / 1e6

    def settle(self) -> None:
        """Wait until the processes are idle, for at most SETTLE_S."""
        deadline_s = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline_s:
            before_s = self.cpu_s
            time.sleep(QUIET_S)
            if self.cpu_s - before_s < QUIET_SHARE * QUIET_S:
                return

    def wait_until(self, is_ready: Callable[[], bool], within_s: float) -> None:
        """CannotRun if the program ends before it is ready, or takes longer."""
        until_s = time.monotonic() + within_s
        while not is_ready():
            if not self.is_running:
                raise CannotRun(f"the process exited during its start: {self.log_tail()}")
            if time.monotonic() > until_s:
                raise CannotRun(f"not ready in {within_s:.0f} s: {self.log_tail()}")
            time.sleep(POLL_S)

    def wait_for_port(self, port: int, within_s: float) -> None:
        def is_open() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return True
            return False

        self.wait_until(is_open, within_s)

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            deadline_s = time.monotonic() + END_S
            while time.monotonic() < deadline_s and (self.is_running or self._stats()):
                time.sleep(0.02)
        self._process.wait(END_S)

    def log_tail(self, chars: int = 300) -> str:
        """The end of its output, on one line."""
        lines = self._log.read_text(errors="replace").split()
        return " ".join(lines)[-chars:]

    def _stats(self) -> list[ProcessStat]:
        return stats_of(self.pid)


def stats_of(session: int) -> list[ProcessStat]:
    """The living processes of a session, and their children that have sessions of their own."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 faster, and this runs often
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.append(ProcessStat(int(name)))
    own = {stat.pid for stat in found if stat.session == session}
    return [stat for stat in found if (stat.pid in own or stat.parent in own) and not stat.is_dead]


def on_core(core: int) -> AbstractContextManager[None]:
    """Pin processes started inside the block to one core."""
    return on_cores({core})


def on_all_cores() -> AbstractContextManager[None]:
    return on_cores(range(os.cpu_count() or 1))


@contextlib.contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move_to_load_core() -> None:
    """Pin this process, which generates the load, to the load core, and raise its limit of open files."""
    if not {GATEWAY_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise CannotRun("two cores are needed: one for the gateway, one for load and upstream")
    os.sched_setaffinity(0, {LOAD_CORE})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if most == resource.RLIM_INFINITY else min(FILES_WANTED, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def commit() -> str:
    """The commit of this tree; it ends with -dirty if files were changed since."""
    command = ["git", "-C", str(Path(__file__).parents[1]), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "an unknown commit"


def load_average() -> str:
    """Of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def facts() -> dict[str, str | int]:
    """The facts about this machine that the figures depend on."""
    return {
        "cores": os.cpu_count() or 0,
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": interpreter(),
        "load_average": load_average(),
    }


def interpreter() -> str:
    """Which interpreter this is, as far as its speed depends on it: version, optimizations of its build, processor."""
    configured = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_debians = sys.base_prefix == "/usr" and Path("/etc/debian_version").exists()  # its rules optimize, not configure
    profiled = "" if is_debians or "--enable-optimizations" in configured else "not "
    linked = " with LTO" if is_debians or "--with-lto" in configured else ""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{name}, {profiled}profile-guided{linked}, {platform.machine()}"


def _cpu_model() -> str:
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout  # noqa: S607 on the PATH
    names = [line.partition(":")[2].strip() for line in listed.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.processor() or "unknown"
