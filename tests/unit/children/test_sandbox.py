"""A child that has closed its door has memory, time and its socket left, and nothing else."""

import errno
import os
import sys
from collections.abc import AsyncIterator

import pytest

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.seccomp import ALLOW, CLONE_THREAD, KILL, MACHINES, REFUSE, filter_steps, this_machine
from tests.unit.children.bpf import Call, run_filter

PROBE = "tests.unit.children.probe"
LIMITS = ChildLimits(cpu_s=10, memory_bytes=512 * 1024 * 1024)
WAIT_S = 100.0
NETWORK = ["connect", "connect over IPv6", "connect to a local socket", "socket pair", "pipe"]
PROGRAMS = ["fork", "execute", "spawn", "trace", "kill the parent", "limit the parent"]
CHANGES = [
    *("write a file", "append to a file", "delete a file", "rename a file", "link a file", "make a folder"),
    *("change a mode", "make a memory file"),
]
READING = ["read a file", "list a folder", "import a module"]
HARMLESS = ["start a thread", "map memory", "random bytes", "sleep", "allow CPU time"]
EPERM = REFUSE | errno.EPERM
X86 = MACHINES["x86_64"]
X86_REFUSED = {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "accept4": 288,
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "ptrace": 101, "kill": 62, "tkill": 200, "open": 2,
    "openat": 257, "openat2": 437, "creat": 85, "unlink": 87, "rename": 82, "mkdir": 83, "link": 86,
    "io_uring_setup": 425, "bpf": 321, "memfd_create": 319, "process_vm_writev": 311, "pidfd_getfd": 438,
    "sendmsg": 46, "mount": 165, "setuid": 105, "prctl": 157, "x32 read": 0x40000000,
}  # fmt: skip

needs_filter = pytest.mark.skipif(this_machine() is None, reason="there is no such filter here")


@pytest.fixture
async def lane(request: pytest.FixtureRequest) -> AsyncIterator[Lane]:
    lane = Lane(LaneSettings(getattr(request, "param", PROBE), LIMITS, WAIT_S))
    yield lane
    await lane.stop()


async def attempt(lane: Lane, name: str) -> str:
    return (await lane.run("owner", name.encode())).decode()


@needs_filter
async def test_a_child_has_no_network_no_programs_and_no_files(lane: Lane) -> None:
    """Sockets, processes, and files, whether to write or to read, are refused with EPERM, and the child goes on."""
    refused = {name: await attempt(lane, name) for name in [*NETWORK, *PROGRAMS, *CHANGES, *READING]}
    assert refused.pop("import a module") in {"PermissionError", "ModuleNotFoundError"}
    assert set(refused.values()) == {"PermissionError"}, refused
    assert lane.is_sandboxed


async def test_a_child_can_still_work(lane: Lane) -> None:
    """Threads, memory, random numbers, clocks and its own CPU limit are left to it."""
    assert {name: await attempt(lane, name) for name in HARMLESS} == dict.fromkeys(HARMLESS, "done")


@needs_filter
@pytest.mark.parametrize("lane", ["tests.unit.children.unfiltered_probe"], indirect=True)
async def test_a_child_without_a_filter_has_its_limits(lane: Lane) -> None:
    """Where the system refuses the filter, the parent is told, and no file and no socket can be opened all the same."""
    assert await attempt(lane, "say the process")
    assert not lane.is_sandboxed
    opening = ["connect", "connect to a local socket", "socket pair", "write a file", "read a file", "list a folder"]
    refused = {name: await attempt(lane, name) for name in opening}
    assert set(refused.values()) == {"OSError"}, refused
    if os.geteuid() != 0:
        assert await attempt(lane, "fork") == "BlockingIOError"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the numbers of Linux")
def test_the_filter_for_x86_64_refuses_what_it_should() -> None:
    """By its steps: the same calls are refused on the other kind of processor, and threads are allowed."""
    steps = filter_steps(X86)
    results = {name: run_filter(steps, Call(X86.architecture, number)) for name, number in X86_REFUSED.items()}
    assert results == dict.fromkeys(X86_REFUSED, EPERM)
    assert run_filter(steps, Call(X86.architecture, 56)) == EPERM
    assert run_filter(steps, Call(X86.architecture, 56, (CLONE_THREAD,))) == ALLOW
    assert run_filter(steps, Call(X86.architecture, 435)) == REFUSE | errno.ENOSYS
    assert run_filter(steps, Call(X86.architecture, 45)) == ALLOW
    assert run_filter(steps, Call(X86.architecture, 234, (os.getpid(),))) == ALLOW
    assert run_filter(steps, Call(X86.architecture, 234, (os.getppid(),))) == EPERM
    assert run_filter(steps, Call(0x40000003, 45)) == KILL  # a 32-bit call, whose numbers mean other things
