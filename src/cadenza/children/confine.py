"""What a child process calls: it limits itself, then takes one task after the other from its parent.

It has no provider keys, no listening socket and no files, writes nothing, and leaves no core dump. Memory and CPU time
are limited by the system; beyond a limit it dies. Once it has imported what it needs, it gives up the network, other
programs and files, as far as the system can take them away. It ends when its socket closes, and with its parent.
It works without a limit that the system refuses; the start of the service warns of those (`refused_limits`).
"""

import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

import msgspec

from cadenza.children.seccomp import refuse_system_calls
from cadenza.process import end_with_parent, protect_memory, set_limit

TASK = struct.Struct("<II")  # how many bytes its head and its body have
FRAME = struct.Struct("<BI")  # what comes back: its kind, and a number
REPLY, SANDBOXED = 0, 1  # the number is the size of a reply; whether the system filters system calls
NICENESS = 5  # where cores are scarce, the service itself goes first


class ChildLimits(msgspec.Struct, frozen=True):
    """What a child may use. It gets them on its command line, as JSON."""

    cpu_s: int  # for one task
    memory_bytes: int  # of address space


def read_limits() -> ChildLimits:
    return msgspec.json.decode(sys.argv[2], type=ChildLimits)


def confine(limits: ChildLimits) -> None:
    """Call it first, on the main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the child too; the parent handles it
    protect_memory()
    end_with_parent()
    if os.getppid() != int(sys.argv[1]):  # the parent ended before
        os._exit(0)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = limits.memory_bytes if most == resource.RLIM_INFINITY else min(limits.memory_bytes, most)
    set_limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    os.nice(NICENESS)


def enter_sandbox() -> None:
    """Give up the network, other programs, and files; irreversible. Call it after all imports, before the first task.

    The parent is told whether the system refuses these calls; where it does not, the limits below still stop most of
    them.
    """
    set_limit(resource.RLIMIT_NOFILE, 0, 0)
    set_limit(resource.RLIMIT_FSIZE, 0, 0)
    is_filtered = refuse_system_calls()
    if not is_filtered:
        set_limit(resource.RLIMIT_NPROC, 0, 0)  # of no effect for root
    os.write(0, FRAME.pack(SANDBOXED, is_filtered))


def allow_cpu(seconds: int) -> None:
    """Beyond this, the system ends the process with SIGXCPU."""
    limit_s = int(time.process_time()) + 1 + seconds
    set_limit(resource.RLIMIT_CPU, limit_s, resource.RLIM_INFINITY)


def serve_tasks(serve: Callable[[bytearray, bytearray], bytes], after: Callable[[], object] = lambda: None) -> None:
    """Give the head and the body of each task to `serve`, send what it returns, then call `after`."""
    with socket.socket(fileno=0) as parent:
        while sizes := _receive(parent, TASK.size):
            head_bytes, body_bytes = TASK.unpack(sizes)
            reply = serve(_receive(parent, head_bytes), _receive(parent, body_bytes))
            parent.sendall(FRAME.pack(REPLY, len(reply)))
            parent.sendall(reply)
            del reply
            after()


def _receive(parent: socket.socket, size_bytes: int) -> bytearray:
    """Read exactly `size_bytes`; nothing once the parent has closed its end."""
    data = bytearray(size_bytes)
    view, received = memoryview(data), 0
    while received < size_bytes:
        count = parent.recv_into(view[received:])
        if not count:
            return bytearray()
        received += count
    return data
