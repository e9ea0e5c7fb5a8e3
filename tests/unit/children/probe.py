"""A child that tries what its task names, and says how that ended. Started by the tests of this folder."""

import ctypes
import mmap
import os
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cadenza.children.confine import (
    FRAME,
    REPLY,
    SANDBOXED,
    allow_cpu,
    confine,
    enter_sandbox,
    read_limits,
    serve_tasks,
)

FOLDER = Path("/tmp")  # where anybody may write
PTRACE_TRACEME = 0


def connect(family: socket.AddressFamily, address: object) -> None:
    with socket.socket(family) as one:
        one.connect(address)  # type: ignore[arg-type]


def trace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_TRACEME, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "")


def fork() -> None:
    if not os.fork():
        os._exit(0)


def start_thread() -> None:
    thread = threading.Thread(target=time.process_time)
    thread.start()
    thread.join()


def spin() -> None:
    allow_cpu(0)
    while True:
        pass


def map_memory() -> None:
    mmap.mmap(-1, 1 << 20).close()


ATTEMPTS: dict[str, Callable[[], object]] = {
    "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", 9)),
    "connect over IPv6": lambda: connect(socket.AF_INET6, ("::1", 9)),
    "connect to a local socket": lambda: connect(socket.AF_UNIX, "/run/nothing"),
    "socket pair": socket.socketpair,
    "pipe": os.pipe,
    "fork": fork,
    "execute": lambda: os.execve("/bin/true", ["true"], {}),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "trace": trace,
    "write a file": lambda: (FOLDER / "cadenza-probe").write_text("x"),
    "append to a file": lambda: (FOLDER / "cadenza-probe").open("a"),
    "delete a file": (FOLDER / "cadenza-probe").unlink,
    "rename a file": lambda: (FOLDER / "cadenza-probe").rename(FOLDER / "cadenza-probe-2"),
    "link a file": lambda: (FOLDER / "cadenza-probe").symlink_to("/etc/passwd"),
    "make a folder": (FOLDER / "cadenza-probe").mkdir,
    "change a mode": lambda: FOLDER.chmod(0o1777),
    "make a memory file": lambda: os.memfd_create("x"),
    "kill the parent": lambda: os.kill(os.getppid(), signal.SIGCONT),
    "limit the parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU),
    "read a file": lambda: Path("/etc/passwd").read_text(),
    "list a folder": lambda: list(Path("/etc").iterdir()),
    "import a module": lambda: __import__("colorsys"),
    "start a thread": start_thread,
    "map memory": map_memory,
    "random bytes": lambda: secrets.token_bytes(8),
    "sleep": lambda: time.sleep(0.001),
    "allow CPU time": lambda: allow_cpu(5),
    "use CPU time": spin,
    "abort": os.abort,
    "crash": lambda: ctypes.string_at(0),
    "divide by zero": lambda: signal.raise_signal(signal.SIGFPE),
    "lose its memory": lambda: signal.raise_signal(signal.SIGBUS),
    "call another system": lambda: signal.raise_signal(signal.SIGSYS),
    "be killed": lambda: signal.raise_signal(signal.SIGKILL),
    "announce a huge reply": lambda: os.write(0, FRAME.pack(REPLY, 1 << 31)),
    "report a sandbox again": lambda: os.write(0, FRAME.pack(SANDBOXED, 1)),
    "exit": lambda: os._exit(3),
    "say the process": os.getpid,
}


def serve(head: bytearray, body: bytearray) -> bytes:
    try:
        done = ATTEMPTS[head.decode()]()
    except (OSError, ImportError) as error:
        return type(error).__name__.encode()
    return str(done).encode() if isinstance(done, int) else b"done"


def main() -> None:
    confine(read_limits())
    enter_sandbox()
    serve_tasks(serve)


if __name__ == "__main__":
    main()
