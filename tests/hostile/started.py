"""`cadenza serve` started in other ways than usual: without the rights of root, with other limits, with a stuck log."""

import contextlib
import http.client
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.service import END_S, READY_S, Deployment, environment, program, wait_until

PORT = re.compile(r"API +http://\S+:(\d+)/v1\n")
LIMIT = re.compile(r"^Max core file size +(\S+) +(\S+) ", re.MULTILINE)


class Started:
    """A process that serves. Its standard output goes into a file; its standard error too, unless a test wants it."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output
        self.port = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def children(self) -> list[int]:
        found = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(child) for path in found for child in path.read_text().split()]

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.process.poll() is not None or self._is_ready(), "the service being ready", READY_S)
        assert self.process.poll() is None, f"cadenza serve ended:\n{self.output}"

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} ([0-9.e+]+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found, name
        return int(float(found[1]))

    def _is_ready(self) -> bool:
        if not self.port and (found := PORT.search(self.output)):
            self.port = int(found[1])
        try:
            return self.port != 0 and self.get("/readyz")[0] == 200
        except OSError:
            return False


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
