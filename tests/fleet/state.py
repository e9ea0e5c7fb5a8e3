"""A Valkey or Redis server on a loopback port, in memory only, that tests kill, start again and flush."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

from tests.debian import SYSTEM_PATH, find_or_install
from tests.fleet.ports import free_port
from tests.service import END_S, wait_until

REPLY_S = 10.0


class StateServer:
    """The server; its port stays the same over restarts."""

    def __init__(self, folder: str) -> None:
        valkey = shutil.which("valkey-server", path=SYSTEM_PATH)
        self._program = valkey or find_or_install("redis-server", "redis-server")
        self._folder = folder
        self.port = free_port()

    def start(self) -> None:
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command = [self._program, *settings, "--dir", self._folder]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(self._answers, "the shared state server")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def flush(self) -> None:
        assert self._ask(b"FLUSHALL\r\n") == b"+OK\r\n"

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._ask(b"PING\r\n") == b"+PONG\r\n"
        return False

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), REPLY_S) as connection:
            connection.sendall(command)
            return connection.recv(100)


@contextlib.contextmanager
def running_state() -> Iterator[StateServer]:
    with tempfile.TemporaryDirectory(prefix="cadenza-state-") as folder:
        server = StateServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
