"""A gateway under test: its processes, which can be killed, paused and cut off from their store.

An adapter (cadenza.py, litellm.py, …) makes a `GatewayUnderTest` as the gateway's documentation says for production.
"""

import contextlib
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from tests.link import Link

from bench.machine import ProcessTree
from bench.money.clients import ChatAddress
from bench.money.reckon import Billed

READY_S = 300.0
PROBE_S = 5.0


class GatewayProcess:
    """One process of the gateway, in a session of its own, and its link to the store."""

    def __init__(self, folder: Path, port: int, ready_path: str, store_link: Link | None = None) -> None:
        self.folder = folder
        self.port = port
        self._ready_path = ready_path
        self.store_link = store_link
        self._command: Sequence[str | Path] = ()
        self._env: Mapping[str, str] = {}
        self._tree: ProcessTree | None = None

    def configure(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._command, self._env = command, env or {}

    def start(self) -> None:
        self._tree = ProcessTree(self._command, None, self.folder / "process.log", self._env)

    @property
    def tree(self) -> ProcessTree:
        assert self._tree
        return self._tree

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.stop()  # nothing is left to stop: it waits for the end of all of its processes

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._tree:
            self._tree.stop()

    def wait_until_ready(self) -> None:
        self.tree.wait_until(self._is_ready, READY_S)

    def _is_ready(self) -> bool:
        ask = f"GET {self._ready_path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PROBE_S) as connection:
            connection.sendall(ask)
            return b" 200 " in connection.recv(1024).partition(b"\r\n")[0]
        return False

    @property
    def link(self) -> Link:
        assert self.store_link
        return self.store_link

    def _signal(self, number: signal.Signals) -> None:
        if self._tree is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._tree.pid, number)


class Ledger(msgspec.Struct, frozen=True):
    """What a gateway says that it charged: its balances by wallet, each charge, and what its own check found."""

    spent_nano: Mapping[str, int]
    billed: Sequence[Billed]
    own_check: str = ""


class GatewayUnderTest(ABC):
    """A running gateway. Its methods block; they are called in threads."""

    address: ChatAddress
    processes: Sequence[GatewayProcess]
    settings: Mapping[str, str]

    @abstractmethod
    def create(self, wallet: str, budget_nano: int) -> str:
        """Make an account or key with a budget, and return its secret."""

    @abstractmethod
    def revoke(self, wallet: str) -> None:
        """Revoke the key. It returns when the gateway says that this is done."""

    @abstractmethod
    def read(self) -> Ledger:
        """What was charged. The benchmark waits for `settle_s` after the load before it asks."""


class MoneyGateway(ABC):
    """How to install and start a gateway, and what it promises about money."""

    name: str
    settle_s: float  # after the load, once every process is ready: until all that it will ever charge is charged
    promises: Sequence[str]  # where its documentation promises less than an exact budget

    @abstractmethod
    def install(self) -> str:
        """Returns its version; raises CannotRun with the reason."""

    @abstractmethod
    def running(self, folder: Path, upstream_port: int) -> contextlib.AbstractContextManager[GatewayUnderTest]:
        """Serves until the block ends."""


@contextlib.contextmanager
def started(processes: Sequence[GatewayProcess]) -> Iterator[None]:
    """Start the processes, and stop them at the end."""
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.wait_until_ready()
        yield
    finally:
        for process in processes:
            process.resume()
            process.stop()
