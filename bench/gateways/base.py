"""The interface of a gateway: how to install it, and how to start it in front of the upstream."""

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bench.machine import GATEWAY_CORE, CannotRun, ProcessTree
from bench.workload import PLAIN, Target

READY_S = 90.0
POLL_S = 0.01
PROBE_S = 30.0


class Launch(msgspec.Struct, frozen=True):
    """A command, its environment and its target. A gateway that chooses its own port writes it to `port_file`."""

    command: Sequence[str | Path]
    target: Target
    env: Mapping[str, str] = {}
    port_file: Path | None = None

    def resolved(self) -> Target | None:
        """The target with its real port, or None while the port is unknown."""
        if self.port_file is None:
            return self.target
        written = self.port_file.read_text() if self.port_file.exists() else ""
        return msgspec.structs.replace(self.target, port=int(written)) if written else None


class Gateway(Protocol):
    """A program between a client and the upstream."""

    name: str

    def install(self) -> str:
        """Find the program or install it from a registry. Returns its version; raises CannotRun with the reason."""
        ...

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        """Write its configuration into the folder. It must run one worker on the port."""
        ...


class Running(msgspec.Struct, frozen=True):
    """A gateway that is ready to serve."""

    tree: ProcessTree
    target: Target
    cold_start_s: float


@contextlib.contextmanager
def running(gateway: Gateway, folder: Path, upstream_port: int) -> Iterator[Running]:
    """Start the gateway on its core and wait for the first 200 to a chat request; stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    launch = gateway.prepare(folder, free_port(), upstream_port)
    began_s = time.perf_counter()
    with ProcessTree(launch.command, GATEWAY_CORE, folder / "process.log", launch.env) as tree:
        target = wait_for_reply(tree, launch, began_s + READY_S)
        yield Running(tree, target, time.perf_counter() - began_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_reply(tree: ProcessTree, launch: Launch, until_s: float) -> Target:
    seen = "no reply"
    while time.perf_counter() < until_s:
        if not tree.is_running:
            raise CannotRun(f"the process exited during its start: {tree.log_tail()}")
        target = launch.resolved()
        seen = _status(target) if target else "no port yet"
        if target and seen == "200":
            return target
        time.sleep(POLL_S)
    raise CannotRun(f"not ready in time ({seen}): {tree.log_tail()}")


def _status(target: Target) -> str:
    """The status of one plain request, or the name of the error."""
    head, _, body = target.request(PLAIN).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=PROBE_S)
    try:
        connection.request("POST", target.path, body, headers)
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
