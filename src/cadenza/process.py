"""Settings of a whole process: the service, its workers and the model's child. A leaf: it imports nothing of ours."""

import ctypes
import gc
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MIB = 1024 * 1024
RESERVE_BYTES = 160 * MIB  # the tokenizer, the connections and the rest of a busy process
ADDRESS_RESERVE_BYTES = 448 * MIB  # the same, and a heap and a stack for each of a handful of threads
NO_LIMIT_BYTES = 2**60  # v1 writes a number near 2**63 where there is no limit
FILES_MAX = 65_536  # open at once: what the service asks for
TRIED_LIMITS = {"RLIMIT_AS": 256 * 1024 * MIB, "RLIMIT_NOFILE": FILES_MAX}  # no process comes near the first
NO_THREAD = "can't start new thread"
POLL_INTERVAL_S = 5.0
QUIET_CONNECTIONS = 500  # a full collection then takes a few ms; beside 2,400 connections it takes 20 to 40
KEPT_BYTES = 16 * MIB  # of freed memory; enough for the bodies of eight agents' turns at once
MAPPED_BYTES = 4 * MIB  # what is larger is returned to the system when it is freed
QUIET_LOOKS = (8, 16, 32, 64)  # first when kept connections to upstreams are closed, then for what was in use before


def protect_memory() -> None:
    """Forbid core files, and on Linux keep other processes of this user out of the memory: it has prompts and keys.

    A program that is started from here keeps the limit, but must call this again to be protected from the others.
    """
    set_limit(resource.RLIMIT_CORE, 0, 0)
    _set(PR_SET_DUMPABLE, 0)


def set_limit(kind: int, soft: int, hard: int) -> bool:
    """Limit this process. False if the system refuses the limit, as macOS does with some that Linux takes."""
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):
        return False
    return True


def refused_limits() -> list[str]:
    """The limits that this system refuses: each is tried with a value that does no harm, and restored."""
    return [name for name, value in TRIED_LIMITS.items() if not _takes_limit(getattr(resource, name), value)]


def _takes_limit(kind: int, value: int) -> bool:
    soft, hard = resource.getrlimit(kind)
    takes = set_limit(kind, value if hard == resource.RLIM_INFINITY else min(value, hard), hard)
    set_limit(kind, soft, hard)
    return takes


def end_with_parent() -> None:
    """On Linux, have this process killed when the thread that started it ends, even if it hangs."""
    _set(PR_SET_PDEATHSIG, signal.SIGKILL)


def _set(option: int, value: int) -> None:
    """Call prctl, which fails for neither of these options; other systems do not have it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def memory_room(processes: int = 1, root: Path = Path("/")) -> int | None:
    """How many bytes this process may still take: by its address space, and by its control groups. None: no limit.

    `processes` like this one share its control groups. An address space also holds what is reserved and never used,
    such as the heaps of threads, so less of it counts. `root` is the root of the file system.
    """
    taken_pages, resident_pages = (int(number) for number in (_read(root / "proc/self/statm").split() or "00")[:2])
    page_bytes = resource.getpagesize()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    rooms = [most // processes - resident_pages * page_bytes - RESERVE_BYTES for most in group_limits(root)]
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - taken_pages * page_bytes - ADDRESS_RESERVE_BYTES)
    return max(0, min(rooms)) if rooms else None


def group_limits(root: Path) -> list[int]:
    """The memory limits of this process's control groups, from `memory.max` (v2) or `memory.limit_in_bytes` (v1)."""
    folders = group_folders("memory", root)
    found = [(_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip() for folder in folders]
    return [int(limit) for limit in found if limit.isdecimal() and int(limit) < NO_LIMIT_BYTES]


def cpu_quotas(root: Path = Path("/")) -> list[float]:
    """The CPU quotas of this process's control groups, in cores. `root` is the root of the file system."""
    quotas = list[float]()
    for folder in group_folders("cpu", root):
        numbers = _read(folder / "cpu.max").split()  # of v2; v1 has two files
        numbers = numbers or [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(numbers) == 2 and all(number.isdecimal() and int(number) for number in numbers):  # else "max", or -1
            quotas.append(int(numbers[0]) / int(numbers[1]))
    return quotas


def group_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of all groups above them: each may have a limit.

    A group is a line like `0::/a/b` (v2, for all controllers) or `4:cpu,cpuacct:/a` (v1).
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for part in (group, *group.parents):
            yield root / "sys/fs/cgroup" / (controller if controllers else "") / part


def is_exhausted(error: BaseException) -> bool:
    """Whether the process is out of memory or threads. Once other requests have ended, there may be some again."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error) == NO_THREAD)


def keep_freed_memory() -> None:
    """Keep what a request has freed for the next one, where the C library is glibc.

    Otherwise glibc returns the memory of each long body, and the system clears as many pages for the next: a tenth of
    the cost of an agent's turn. `return_memory_after_peaks` returns it when the process is quiet.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # musl does not have it
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def return_memory() -> None:
    """Return to the system what a peak has left.

    Python returns an area of 1 MB when nothing is in it. After a peak many areas have only what is kept for reuse, up
    to 2,000 tuples of each length among it. A full collection frees that.
    """
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl does not have it
        libc.malloc_trim(0)


async def return_memory_after_peaks(
    count_connections: Callable[[], int],
    poll_interval_s: float = POLL_INTERVAL_S,
    act: Callable[[], None] = return_memory,
) -> None:
    """Call `act` when few connections were open at 8 looks in a row, and again at 16, 32 and 64 (QUIET_LOOKS)."""
    import asyncio  # noqa: PLC0415 children do without it

    looks = 0
    while True:
        await asyncio.sleep(poll_interval_s)
        looks = looks + 1 if count_connections() < QUIET_CONNECTIONS else 0
        if looks in QUIET_LOOKS:
            act()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
