"""The server of the shared state, on a loopback port that stays the same over restarts."""

import contextlib
from collections.abc import Iterator

from tests.fleet.ports import free_port
from tests.valkey import Valkey, running_valkey


class StateServer:
    """A Valkey or Redis server that tests kill, start again and flush."""

    def __init__(self, server: Valkey, port: int) -> None:
        self.port = port
        self._server = server

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def flush(self) -> None:
        assert self._server.command("FLUSHALL") == b"+OK\r\n"


@contextlib.contextmanager
def running_state() -> Iterator[StateServer]:
    port = free_port()
    with running_valkey("--port", str(port), "--bind", "127.0.0.1") as server:
        yield StateServer(server, port)
