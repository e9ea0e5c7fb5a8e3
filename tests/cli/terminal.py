"""A command at a terminal, and somebody who types there."""

import os
import pty
import re
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cadenza.upstreams.known import HOSTED
from tests.environment import environment

READ_BYTES = 4096
WAIT_S = 30.0


class Typist:
    """Types at the terminal of a command, when it shows a question."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = ""
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """What the pattern matched, in what was shown after the last match."""
        while not (found := re.search(pattern, self._unread)):
            is_ready = select.select([self._terminal], [], [], WAIT_S)[0]
            assert is_ready, f"no {pattern!r} in:\n{self.shown}"
            read = os.read(self._terminal, READ_BYTES).decode()
            self._unread += read
            self.shown += read
        self._unread = self._unread[found.end() :]
        return found[0]

    def answer(self, question: str, typed: str) -> None:
        self.wait_for(question)
        os.write(self._terminal, f"{typed}\n".encode())


@contextmanager
def at_terminal(command: list[str | Path], folder: Path, exit_code: int = 0) -> Iterator[Typist]:
    """A command at a terminal. It must end with this exit code."""
    ours, theirs = pty.openpty()
    variables = environment(COLUMNS="120")
    for place in HOSTED:
        variables.pop(place.key_env or "", None)
    with subprocess.Popen(command, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        typist = Typist(ours)
        try:
            yield typist
            assert process.wait(60) == exit_code, typist.shown
        finally:
            process.kill()
            os.close(ours)
