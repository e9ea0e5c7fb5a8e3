"""A filter of system calls for this process, by Linux's seccomp: a short list is allowed, everything else is refused.

What is left works on what the process already has: memory, threads, its own limits, and the open socket. There are no
new sockets, programs, processes or files. A refused call fails with EPERM, and the process goes on. Where the system
has no such filter, or a container forbids it, nothing changes, and the caller is told.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

import msgspec

PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, ALL_THREADS = 1, 1
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # REFUSE takes the number of an error
LOAD, IF_EQUAL, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
CALL, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where they are in the data that the filter sees
CLONE_THREAD = 0x00010000

# name -> its number on x86_64 and on aarch64
ALLOWED = {
    "recvfrom": (45, 207), "sendto": (44, 206), "read": (0, 63), "write": (1, 64),
    "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "madvise": (28, 233),
    "mprotect": (10, 226), "futex": (202, 98), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "sched_yield": (24, 124),
    "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "getpid": (39, 172),
    "gettid": (186, 178), "getrandom": (318, 278), "getsockname": (51, 204), "getsockopt": (55, 209),
    "fstat": (5, 80), "lseek": (8, 62), "close": (3, 57), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "sched_getaffinity": (204, 123), "set_robust_list": (273, 99), "rseq": (334, 293),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
CLONE, CLONE3, TGKILL, PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
SECCOMP = (317, 277)


class Machine(msgspec.Struct, frozen=True):
    """A kind of processor: its place in the tables above, and the kernel's name for it."""

    column: int
    architecture: int


MACHINES = {"x86_64": Machine(0, 0xC000003E), "aarch64": Machine(1, 0xC00000B7)}


class Instruction(ctypes.Structure):
    """One step of the filter. A jump says how many steps to skip, if it is true and if not."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class Program(ctypes.Structure):
    """The steps of a filter, as the kernel takes them."""

    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(Instruction)))


Step = tuple[int, int, int, int]


def refuse_system_calls() -> bool:
    """Install the filter on all threads; this is irreversible. False where the system does not support it."""
    machine = this_machine()
    return machine is not None and install(filter_steps(machine), machine)


def this_machine() -> Machine | None:
    """None where the system has no seccomp, or the numbers of its system calls are not known."""
    is_fit = sys.platform == "linux" and sys.maxsize > 2**32
    return MACHINES.get(os.uname().machine) if is_fit else None


def install(steps: Sequence[Step], machine: Machine) -> bool:
    program = Program(len(steps), (Instruction * len(steps))(*(Instruction(*step) for step in steps)))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    call = ctypes.c_long(SECCOMP[machine.column])
    return bool(libc.syscall(call, SET_MODE_FILTER, ALL_THREADS, ctypes.byref(program)) == 0)


def filter_steps(machine: Machine) -> list[Step]:
    column = machine.column
    steps = [(LOAD, 0, 0, ARCHITECTURE), (IF_EQUAL, 1, 0, machine.architecture), _return(KILL), (LOAD, 0, 0, CALL)]
    for numbers in ALLOWED.values():
        steps += [(IF_EQUAL, 0, 1, numbers[column]), _return(ALLOW)]
    steps += _allow_if(CLONE[column], (IF_ANY_BIT, 0, 1, CLONE_THREAD))
    steps += _allow_if(TGKILL[column], (IF_EQUAL, 0, 1, os.getpid()))  # abort() needs it
    steps += _allow_if(PRLIMIT[column], (IF_EQUAL, 0, 1, 0))  # its own limits
    steps += [(IF_EQUAL, 0, 1, CLONE3[column]), _return(REFUSE | errno.ENOSYS)]  # the C library uses clone instead
    return [*steps, _return(REFUSE | errno.EPERM)]


def _allow_if(call: int, condition: Step) -> list[Step]:
    """Allow a call if its first argument meets the condition, which skips one step if it does not."""
    load = (LOAD, 0, 0, ARGUMENTS)
    return [(IF_EQUAL, 0, 4, call), load, condition, _return(ALLOW), _return(REFUSE | errno.EPERM)]


def _return(value: int) -> Step:
    return RETURN, 0, 0, value
