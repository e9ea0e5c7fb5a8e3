"""A Valkey or Redis server of the tests' own, on a Unix socket. It can be killed, restarted and frozen."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from cadenza.parts.valkey.rates import SINCE_KEY
from tests.debian import find_or_install, installed
from tests.service import Serving, wait_until

START_S = 30.0
ANSWER_S = 30.0
RUNS_MAX = 10
DOWN = "the shared state does not answer"

T = TypeVar("T")


class Valkey:
    """A server without persistence."""

    def __init__(self, program: str, folder: Path, *settings: str) -> None:
        self.socket = folder / "valkey.sock"
        self._command = [program, "--port", "0", "--unixsocket", str(self.socket), "--save", "", *settings]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline_s, (self._folder / "log").read_text()
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
        self._process = None

    def settle(self) -> None:
        """Make it a server that has its memory for long: all processes have told it what they know."""
        self.command("SET", SINCE_KEY, "0")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, *parts: str) -> bytes:
        """Send one command, and return the raw answer as far as it fits into one packet."""
        packed = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p.encode()), p.encode()) for p in parts)
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_S)
            line.connect(str(self.socket))
            line.sendall(packed)
            return line.recv(65536)

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _signal(self, number: int) -> None:
        assert self._process
        os.kill(self._process.pid, number)


@contextmanager
def running_valkey(*settings: str) -> Iterator[Valkey]:
    program = installed("valkey-server") or find_or_install("redis-server", "redis-server")
    folder = Path(tempfile.mkdtemp(prefix="cadenza-valkey-", dir="/tmp"))
    server = Valkey(program, folder, *settings)
    try:
        server.start()
        server.settle()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def run_while_up(processes: Sequence[Serving], run: Callable[[], T]) -> T:
    """What a run returned in which no process found Valkey late. On a busy machine some do, and keep to their share.

    A process that finds it late again and again does not share anything, which is a failure.
    """

    def are_up() -> bool:
        return all(process.metric("cadenza_shared_state_up") for process in processes)

    for _ in range(RUNS_MAX):
        wait_until(are_up, "every process having Valkey")
        downs = [process.output.count(DOWN) for process in processes]
        result = run()
        if are_up() and downs == [process.output.count(DOWN) for process in processes]:
            return result
    pytest.fail(f"a process found Valkey late in each of {RUNS_MAX} runs")
