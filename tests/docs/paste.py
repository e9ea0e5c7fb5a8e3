"""A terminal for the blocks of a page: a folder with a running service, and programs that do no harm when pasted.

`cadenza` is the real program, forked from a process that has imported it, but `cadenza serve` is started by its
command and takes a free port, and commands that ask for a password get one. `make` only prints what it would do.
`pip` does not use the network. `curl` is replaced where the machine has none. Answers are shorter than the page asks
for.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from tests.cli.program import LOADED, PROGRAM, ROOT, wait_until
from tests.docs.markdown import Block
from tests.environment import environment
from tests.forked import fork_server

PASTE_S = 240.0  # a block may have many commands
DOCS_ADDRESS = "127.0.0.1:8080"
MAX_TOKENS = re.compile(r"(?<=max_tokens)(\W+)\d+")
TOKENS = 4  # the embedded model writes some 30 a second
CADENZA = f"""#!/bin/sh
case "$1 $2" in "account create" | "account password")
  set -- "$@" --password-stdin
  exec <<END
correct horse battery staple
END
esac
[ "$1" = serve ] && exec "{PROGRAM}" "$@" --port 0
[ -n "$FORK_SERVER" ] && exec "{sys.executable}" -IS -c '
import socket, sys
sys.path.insert(0, "{ROOT}")
from tests.forked import run_by_server
sys.exit(run_by_server(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
' "$FORK_SERVER" "{PROGRAM}" "$@"
exec "{PROGRAM}" "$@"
"""
SHIMS = {
    "cadenza": CADENZA,
    "make": f'#!/bin/sh\nexec "{shutil.which("make")}" --dry-run --directory "{ROOT}" "$@"\n',
    "pip": f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@" --no-index --disable-pip-version-check\n',
    "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
}
CURL = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.cli.curl import send
print(send(sys.argv))
"""


def at_port(text: str, port: int) -> str:
    """The text of a block, with the address of the service that is tested."""
    return text.replace(DOCS_ADDRESS, f"127.0.0.1:{port}")


class Running(Protocol):
    """A service that runs in a folder of its own."""

    @property
    def folder(self) -> Path: ...

    @property
    def port(self) -> int: ...


class Terminal:
    """Runs blocks in order. Variables of one block are there in the next one, as in a shell."""

    def __init__(self, server: Running, scratch: Path) -> None:
        self._server = server
        self._scratch = scratch
        self._bin = server.folder / ".venv" / "bin"
        self._bin.mkdir(parents=True, exist_ok=True)
        shims = SHIMS if shutil.which("curl") else SHIMS | {"curl": CURL}
        for name, script in shims.items():
            self.add_program(name, script)
        self._variables = environment(
            PATH=f"{self._bin}:{os.environ['PATH']}", PYTHONPATH=os.environ.get("PYTHONPATH", "")
        )

    def add_program(self, name: str, script: str) -> None:
        """Put a program on the PATH, in front of all others."""
        (self._bin / name).write_text(script)
        (self._bin / name).chmod(0o755)

    def export(self, **variables: str) -> None:
        self._variables |= variables

    def paste(self, block: Block) -> str:
        """Return what the block printed. It must succeed."""
        text = at_port(block.text, self._server.port)
        text = MAX_TOKENS.sub(rf"\g<1>{TOKENS}", text)
        if block.language == "python":
            return self._run(block, ["python", "-c", text])
        if block.language == "javascript":
            return self._run(block, ["node", "--input-type=module", "--eval", text])
        exported = self._scratch / "exported"
        output = self._run(block, ["bash", "-c", f"set -aeo pipefail\n{text}\nenv -0 > '{exported}'"])
        self._variables = dict(line.split("=", 1) for line in exported.read_text().split("\0") if line)
        return output

    def _run(self, block: Block, command: list[str]) -> str:
        output = self._scratch / "output"
        server = fork_server().fileno() if sys.platform == "linux" else None
        with output.open("wb") as out:
            process = subprocess.Popen(
                ["env", *command],  # finds the program on the PATH of the terminal
                cwd=self._server.folder,
                env=self._variables | {"FORK_SERVER": str(server or "")},
                pass_fds=[server] if server else [],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if re.search(r"cadenza serve\s*$", block.text):
            wait_until(
                lambda: LOADED in output.read_text(errors="replace") or process.poll() is not None,
                f"{block.place} to serve",
            )
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(PASTE_S)
        assert code == 0, f"{block.place} exits with {code}:\n{output.read_text()}"
        return output.read_text()
