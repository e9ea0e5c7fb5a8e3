"""`cadenza serve` started in other ways than usual: without the rights of root, with other limits, with a stuck log."""

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.environment import environment
from tests.processes import children
from tests.service import END_S, Deployment, Serving, program

LIMIT = re.compile(r"^Max core file size +(\S+) +(\S+) ", re.MULTILINE)


class Started(Serving):
    """A process that serves. Its standard error goes into the file too, unless a test wants it."""

    @property
    def children(self) -> list[int]:
        return list(children(self.pid))


@contextlib.contextmanager
def started(
    deployment: Deployment, variables: Mapping[str, str] | None = None, prefix: tuple[str, ...] = (), **options: Any
) -> Iterator[Started]:
    """Start it in the deployment's folder and wait until it is ready. `options` are those of Popen."""
    output = deployment.folder / "started.out"
    command = [*prefix, program(), "serve", "--config", str(deployment.config), "--port", "0"]
    with output.open("wb") as out:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out} | options
        process = subprocess.Popen(command, cwd=deployment.folder, env=environment(**(variables or {})), **given)
    try:
        found = Started(process, output)
        found.wait_until_ready()
        yield found
    finally:
        process.kill()
        process.wait(END_S)


def core_limits(pid: int) -> tuple[str, str]:
    """The soft and the hard limit of a core file, as the kernel shows them."""
    found = LIMIT.search(Path(f"/proc/{pid}/limits").read_text())
    assert found
    return found[1], found[2]
