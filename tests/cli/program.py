"""The `cadenza` command: run in this process, run as a process of its own, or serving until a block ends.

Every wait is bounded and fails with what the process printed.
"""

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from unittest import mock

from cadenza.cli import main
from tests.environment import environment
from tests.forked import run_program, start_program
from tests.processes import children, command_of

PROGRAM = Path(sys.executable).parent / "cadenza"
ROOT = Path(__file__).parents[2]
MODEL = b"cadenza.parts.embedded.child"
COMMAND_S = 110.0
START_S = 120.0
STOP_S = 120.0
POLL_S = 0.02
LOADED = "the embedded model is ready"

Done = subprocess.CompletedProcess[str]


def run(folder: Path, *args: str, given: str = "", **variables: str) -> Done:
    """Run one command in `folder` as a process of its own; with variables, by its command."""
    command, typed = [str(PROGRAM), *args], environment(**variables)
    return run_program(command, folder, typed, given, limit_s=COMMAND_S, is_typed=bool(variables))


def run_here(folder: Path, *args: str, given: str = "", **variables: str) -> Done:
    """Run one command in this process, as if typed in `folder`. It saves the second that a new process takes."""
    out, err, exit_code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", io.StringIO(given)),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
    ):
        try:
            main(args)
        except SystemExit as end:
            exit_code = int(end.code or 0)
    return Done(args, exit_code, out.getvalue(), err.getvalue())


def run_other(command: list[str], folder: Path, **variables: str) -> Done:
    """Run another program than `cadenza`."""
    return run_program(command, folder, environment(**variables), limit_s=COMMAND_S, is_typed=True)


class Server:
    """A `cadenza serve` on a free port. What it prints goes into a file in its folder, the screen by a terminal."""

    def __init__(self, folder: Path, *, at_terminal: bool = False) -> None:
        self.folder = folder
        self._file = folder / "server.out"
        command = [str(PROGRAM), "serve", "--port", "0"]
        self._file.unlink(missing_ok=True)
        with self._file.open("ab") as log, terminal_into(self._file) if at_terminal else log as screen:
            self._process = start_program(command, folder, environment(), screen, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._file.read_text(errors="replace")  # it may end in the middle of a character

    @property
    def port(self) -> int:
        return int(self._shown(r"API +http://127\.0\.0\.1:(\d+)/v1\n"))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        return self._shown(r"Key +(sk-cdz-\w+)")

    @property
    def curl_line(self) -> str:
        return self._shown(r"(curl .*)\n")

    def wait_for_output(self, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.output) is not None, f"{pattern!r} in its output", self)

    def wait_for_model(self) -> int:
        """The pid of the model's process, once the model has loaded."""
        self.wait_for_output(LOADED)
        child = model_process(self.pid)
        assert child is not None, self.output
        return child

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self._process.send_signal(number)
        return self._process.wait(STOP_S)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _shown(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        assert found, f"no {pattern!r} in:\n{self.output}"
        return found[1]


def terminal_into(file: Path) -> IO[bytes]:
    """A terminal. What is shown there is copied into the file, until no process has it."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # so that lines end as they were written

    def copy() -> None:
        with file.open("ab", buffering=0) as out, contextlib.suppress(OSError):  # Linux: EIO at the end
            while shown := os.read(ours, 65536):
                out.write(shown)
        os.close(ours)

    threading.Thread(target=copy, daemon=True).start()
    return os.fdopen(theirs, "wb")


@contextlib.contextmanager
def serving(folder: Path, *, at_terminal: bool = False) -> Iterator[Server]:
    """A server that has printed its screen. Its port accepts connections from then on."""
    server = Server(folder, at_terminal=at_terminal)
    try:
        server.wait_for_output(r"curl .*\n")
        yield server
    finally:
        if not server.has_ended():
            try:
                server.end(signal.SIGTERM)
            except subprocess.TimeoutExpired:
                server.end(signal.SIGKILL)
                raise


def wait_until(happened: Callable[[], bool], what: str, server: Server | None = None) -> None:
    deadline_s = time.monotonic() + START_S
    while not happened():
        said = f":\n{server.output}" if server else ""
        assert server is None or not server.has_ended(), f"the server ended before {what}{said}"
        assert time.monotonic() < deadline_s, f"not within {START_S} s: {what}{said}"
        time.sleep(POLL_S)


def model_process(parent: int) -> int | None:
    """The pid of the embedded model's process of this server."""
    return next((child for child in children(parent) if MODEL in command_of(child)), None)
