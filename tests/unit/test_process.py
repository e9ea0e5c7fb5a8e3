"""Settings of a process: how much memory and CPU time its limits leave it, and which errors mean that memory is out."""

import ctypes
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.process import (
    QUIET_CONNECTIONS,
    QUIET_LOOKS,
    RESERVE_BYTES,
    cpu_quotas,
    group_limits,
    is_exhausted,
    memory_room,
    return_memory_after_peaks,
)

MIB = 2**20
PRINT_ROOM = (
    "from pathlib import Path; from cadenza.process import memory_room; print(memory_room({processes}, Path('{root}')))"
)
PROTECTED = """
import resource
from cadenza.process import protect_memory
protect_memory()
print(resource.getrlimit(resource.RLIMIT_CORE))
"""

RETURNED = """
import sys
from cadenza.process import return_memory

return_memory()
before = sys.getallocatedblocks()
tuples = [(number, 0, 0, 0) for number in range(10_000)]
del tuples
kept = sys.getallocatedblocks() - before
return_memory()
print(kept, sys.getallocatedblocks() - before)
"""

FREED = """
import resource
from cadenza.process import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bodies = [bytes(600_000) for _ in range(8)]
        del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, [1000]),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "2000\n",
            },
            [2000],
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n5:memory:/c\n",
                "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1\n",
            },
            [3000],
        ),
    ],
    ids=["none", "v2 without", "v2", "v2 above", "v1"],
)
def test_limits_of_control_groups(tmp_path: Path, files: dict[str, str], limits: list[int]) -> None:
    """Every group above a process limits it too; a group without a limit does not count."""
    write(tmp_path, files)
    assert group_limits(tmp_path) == limits


def test_room_in_a_control_group(tmp_path: Path) -> None:
    """The room is the process's part of the limit, without what it has taken and a reserve; never below zero."""
    pages = 100 * MIB // resource.getpagesize()
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/statm": f"{5 * pages} {pages} 1 1 0 1 0\n"})
    write(tmp_path, {"sys/fs/cgroup/memory.max": f"{1000 * MIB}\n"})
    assert room_of_another(tmp_path) == str(900 * MIB - RESERVE_BYTES)
    assert room_of_another(tmp_path, processes=2) == str(400 * MIB - RESERVE_BYTES)
    write(tmp_path, {"sys/fs/cgroup/memory.max": f"{50 * MIB}\n"})
    assert room_of_another(tmp_path) == "0"


def test_room_without_limits(tmp_path: Path) -> None:
    """Without any limit there is no bound."""
    assert room_of_another(tmp_path) == "None"


def test_room_in_a_bounded_address_space(tmp_path: Path) -> None:
    """A limit on the address space leaves less than itself, and no more with every group unlimited."""
    rooms = [int(room_of_another(tmp_path, f"--as={limit_mib * MIB}")) for limit_mib in (1000, 1500)]
    assert rooms[1] - rooms[0] == 500 * MIB
    assert 0 < rooms[0] < 1000 * MIB


def test_no_core_file() -> None:
    """After the call no core file can be written, and the limit cannot be raised."""
    done = subprocess.run([sys.executable, "-c", PROTECTED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0)"


def test_memory_is_returned() -> None:
    """Tuples that Python keeps for reuse are freed."""
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True)
    kept, kept_after = map(int, done.stdout.split())
    assert kept >= 1900
    assert kept_after < kept / 2


def test_freed_memory_is_kept_for_the_next_bodies() -> None:
    """Where the C library is glibc, bodies like those before take no page of the system."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        return
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    faults, faults_after = map(int, done.stdout.split())
    assert faults > 1000
    assert faults_after < 100


async def test_memory_is_returned_after_a_peak() -> None:
    """It is returned a few times once few connections have been open for long enough, then after another peak."""
    first, *_, last = QUIET_LOOKS
    busy, quiet = [QUIET_CONNECTIONS], [QUIET_CONNECTIONS - 1]
    looks = busy + quiet * (first - 1) + busy + quiet * 2 * last + busy + quiet * first
    left, returned_at = looks[::-1], list[int]()
    with pytest.raises(IndexError):
        await return_memory_after_peaks(left.pop, 0, lambda: returned_at.append(len(looks) - len(left)))
    assert returned_at == [*(first + 1 + wanted for wanted in QUIET_LOOKS), len(looks)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("another"), False),
        (RecursionError(), False),
        (ValueError("can't start new thread"), False),
    ],
)
def test_errors_of_an_exhausted_process(error: Exception, expected: bool) -> None:
    """Memory and threads may be there again later; any other error is a bug."""
    assert is_exhausted(error) is expected


def test_this_process_can_be_asked() -> None:
    """On this machine the room is a number or not bounded."""
    assert (memory_room() or 0) >= 0


def room_of_another(root: Path, *limits: str, processes: int = 1) -> str:
    """What a process without limits of its own, or with these, finds in this file system."""
    program = PRINT_ROOM.format(processes=processes, root=root)
    command = ["prlimit", *(limits or ("--as=unlimited",)), sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


V1 = "7:memory:/pod\n4:cpu,cpuacct:/pod\n"


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [1.5]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, [2.0]),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
            },
            [4.0, 3.0],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            [2.5],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            [2.0],
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            [],
        ),
        ({"proc/self/cgroup": "nonsense\n0::\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, []),
    ],
    ids=["none", "v2", "v2 max", "v2 nested", "v2 parent", "v1", "v1 container", "v1 max", "nonsense"],
)
def test_cpu_quotas_of_control_groups(tmp_path: Path, files: Mapping[str, str], quotas: list[float]) -> None:
    """Quotas are read from cgroup v2 and v1, of the process's own group and of the groups above it."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quotas(tmp_path) == quotas
