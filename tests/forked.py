"""`cadenza`, forked from a process that has imported the program: a start takes 0.05 s of CPU and not 0.9.

The process has a pid, a folder, an environment, a log and signals of its own, as if its command had been typed. One
server for each test process forks them on demand; it ends with the test process.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.environment import environment

ROOT = Path(__file__).parents[1]
ORDER_BYTES_MAX = 100_000
COMMAND_S = 240.0
NUMBER_BYTES = 20  # of a pid and of an exit code: both may be in the pipe before one is read


def start_program(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    out: IO[bytes],
    errors: IO[bytes] | None = None,
    *,
    is_typed: bool = False,
) -> "Process":
    """Start `cadenza`, which writes all to `out`: forked, or by its command, as variables of the interpreter need."""
    if is_typed or sys.platform != "linux":
        return subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=errors or out
        )
    return ForkedProcess(command, folder, variables, out, errors)


def run_program(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    given: str = "",
    *,
    limit_s: float,
    is_typed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `cadenza` with this standard input to its end, in the same way."""
    if is_typed or sys.platform != "linux":
        return subprocess.run(
            command,
            cwd=folder,
            env=variables,
            input=given,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as typed:
        typed.write(given.encode())
        typed.seek(0)
        code = ForkedProcess(command, folder, variables, out, errors, given=typed).wait(limit_s)
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, errors)]
    return subprocess.CompletedProcess(command, code, *texts)


class ForkedProcess:
    """As much of `subprocess.Popen` as the tests use."""

    def __init__(
        self,
        args: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        out: IO[bytes],
        errors: IO[bytes] | None = None,
        *,
        given: IO[bytes] | None = None,
        server: socket.socket | None = None,
    ) -> None:
        """Errors go to `out`, too, unless they have a file of their own.

        With `given`, its standard input, it has no terminal. `server` is that of another process's tests.
        """
        self.returncode: int | None = None
        self._lock = threading.Lock()
        order = json.dumps({"args": args, "folder": str(folder), "variables": dict(variables)}).encode()
        self._status, status = os.pipe()
        files = [out.fileno(), (errors or out).fileno(), status, *([given.fileno()] if given else [])]
        socket.send_fds(server or fork_server(), [order], files)
        os.close(status)
        self.pid = int(os.read(self._status, NUMBER_BYTES))

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = int(os.read(self._status, NUMBER_BYTES))
                os.close(self._status)
            return self.returncode

    def wait(self, timeout: float) -> int:
        if self.poll() is None:
            select.select([self._status], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("cadenza", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | ForkedProcess


@functools.cache
def fork_server() -> socket.socket:
    """Takes the orders of this test process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forked"]
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=theirs.fileno(), stdout=subprocess.DEVNULL
        )

    def stop() -> None:
        ours.close()
        server.wait()

    atexit.register(stop)
    return ours


def run_by_server(server: socket.socket, command: list[str]) -> int:
    """Have a process forked that takes the place of this one, with its files, folder and environment. The exit code."""
    files = (sys.stdout.buffer, sys.stderr.buffer)
    return ForkedProcess(command, Path.cwd(), os.environ, *files, given=sys.stdin.buffer, server=server).wait(COMMAND_S)


def fork_on_demand(run: Callable[[list[str]], None]) -> None:
    """The server: fork a process for each order, which runs a command, until the tests close the socket."""
    orders = socket.socket(fileno=os.dup(0))
    while True:
        order, (*files,), *_ = socket.recv_fds(orders, ORDER_BYTES_MAX, 4)
        _reap()
        if not order:
            return
        if os.fork() == 0:
            orders.close()
            out, errors, status, *given = files
            if _fork_and_watch(status):
                os._exit(0)
            os.close(status)
            _settle_in(json.loads(order), out, errors, given)
            _end_without_clean_up(run)
            return
        for file in files:
            os.close(file)


def _end_without_clean_up(run: Callable[[list[str]], None]) -> None:
    """Run a command, and end with its exit code after all else: the interpreter's clean-up copies all shared memory."""
    code = 1  # that of an error that nobody expects

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # what the command registers runs before it
    try:
        run(sys.argv[1:])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0


def _reap() -> None:
    """Take leave of those that have ended, so that their CPU time is counted."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_and_watch(status: int) -> bool:
    """Fork once more. The parent tells the child's pid, and its exit code when it has ended."""
    pid = os.fork()
    if pid:
        os.write(status, str(pid).rjust(NUMBER_BYTES).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, str(code).rjust(NUMBER_BYTES).encode())
    return pid != 0


def _settle_in(order: dict[str, Any], out: int, errors: int, given: list[int]) -> None:
    """Take the files, the folder, the environment and the command line of the order."""
    if given:
        os.setsid()  # without a terminal, a password is read from standard input
    else:
        given = [os.open(os.devnull, os.O_RDONLY)]
    os.dup2(given[0], 0)
    os.close(given[0])
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.close(out)
    os.close(errors)
    os.environ.clear()
    os.environ.update(order["variables"])
    os.chdir(order["folder"])
    sys.argv = order["args"]


if __name__ == "__main__":
    from cadenza.cli import main, start  # noqa: F401 what a start imports, and the first page
    from cadenza.core import o200k
    from cadenza.server import server, workers  # noqa: F401

    o200k.load()
    gc.freeze()  # a child's collections do not copy what it shares
    fork_on_demand(main)
