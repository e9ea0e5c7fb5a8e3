"""The interface of a gateway: how to install it, and how to start it in front of the upstream."""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bench.machine import GATEWAY_CORE, ProcessTree
from bench.workload import PLAIN, Target

READY_S = 90.0
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
        target = wait_for_reply(tree, launch)
        yield Running(tree, target, time.perf_counter() - began_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_reply(tree: ProcessTree, launch: Launch, within_s: float = READY_S) -> Target:
    tree.wait_until(lambda: (target := launch.resolved()) is not None and _replies(target), within_s)
    return launch.resolved() or launch.target


def _replies(target: Target) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), PROBE_S) as connection:
        connection.sendall(target.request(PLAIN))
        return connection.recv(1024).startswith(b"HTTP/1.1 200 ")
    return False
