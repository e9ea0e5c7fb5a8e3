"""17. Standard error is a pipe that nobody reads: the service answers on, and drops and counts what it cannot write."""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.started import Started, started
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import END_S, Deployment, wait_until
from tests.service_config import classes_spec

pytestmark = pytest.mark.slow(reason="waits for a log that is stuck")

REQUESTS = 5_000  # each writes a line of some 300 bytes: far more than the pipe and the queue hold
AT_ONCE = 100
CHATS = 5
ID_CHARS = 128
WORKERS = 2
WORKERS_TOML = f"[server]\nworkers = {WORKERS}\n"


class Pipe:
    """Standard error of a service: nobody reads it until the test does."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.read_end, fcntl.F_SETPIPE_SZ, 4096)

    def read_until(self, wanted: bytes) -> bytes:
        read, deadline_s = b"", time.monotonic() + END_S
        while wanted not in read:
            assert select.select([self.read_end], [], [], deadline_s - time.monotonic())[0], read[-500:]
            read += os.read(self.read_end, 65_536)
        return read

    def close(self) -> None:
        for end in (self.read_end, self.write_end):
            with contextlib.suppress(OSError):
                os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with contextlib.closing(Pipe()) as made:
        yield made


@pytest.fixture
def deployment(upstream: LoopbackUpstream) -> Iterator[Deployment]:
    with Deployment(classes_spec(upstream.base_url)) as made:
        yield made


@pytest.fixture
def stuck(deployment: Deployment, pipe: Pipe) -> Iterator[Started]:
    """A service that has more to log than its standard error takes."""
    with started(deployment, stderr=pipe.write_end) as running:
        fill_log(running.port)
        yield running


def fill_log(port: int) -> None:
    """Make requests for a path that does not exist, each of which writes one line; every one is answered."""
    request = b"GET /v1/nothing HTTP/1.1\r\nhost: a\r\nx-request-id: %b\r\n\r\n" % (b"a" * ID_CHARS)
    with socket.create_connection(("127.0.0.1", port), END_S) as connection:
        for _ in range(REQUESTS // AT_ONCE):
            connection.sendall(request * AT_ONCE)
            read = b""
            while read.count(b"HTTP/1.1 404") < AT_ONCE:
                more = connection.recv(65_536)
                assert more
                read += more


def test_a_stuck_log_stops_no_request(stuck: Started, deployment: Deployment, pipe: Pipe) -> None:
    """Chats are served, and dropped lines are counted. Read again, the log says how many: none is lost silently."""
    wire = RawClient(stuck.port, deployment.key)
    assert [wire.chat().status for _ in range(CHATS)] == [200] * CHATS
    assert stuck.get("/healthz")[0] == 200
    wait_until(lambda: stuck.metric("cadenza_log_dropped_total") > 0, "dropped lines being counted")
    read = pipe.read_until(b'"log lines were dropped"')
    stuck.get("/v1/models", {"x-request-id": "after"})
    lines = [json.loads(line) for line in (read + pipe.read_until(b'"after"')).split(b"\n") if line.endswith(b"}")]
    dropped = sum(line["dropped"] for line in lines if line["event"] == "log lines were dropped")
    written = sum(line["event"] == "request" for line in lines)
    assert dropped == stuck.metric("cadenza_log_dropped_total")
    assert written + dropped == REQUESTS + CHATS + 1


def test_a_stuck_log_does_not_hold_up_the_end(stuck: Started) -> None:
    """SIGTERM ends the service with exit code 0, although nothing can be written, now or later."""
    stuck.process.send_signal(signal.SIGTERM)
    assert stuck.process.wait(END_S) == 0


def test_a_stuck_log_does_not_hold_up_the_parent_of_workers(upstream: LoopbackUpstream, pipe: Pipe) -> None:
    """The parent replaces a worker, passes signals on and ends, although it cannot log."""
    spec = classes_spec(upstream.base_url)
    with (
        Deployment(type(spec)(spec.providers, spec.routes, WORKERS_TOML)) as deployment,
        started(deployment, stderr=pipe.write_end) as running,
    ):
        fill_log(running.port)
        wait_until(lambda: len(workers_of(running)) == WORKERS, "all workers")
        before = workers_of(running)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(workers_of(running)) - set(before)) == 1, "a new worker")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(END_S) == 0


def workers_of(running: Started) -> list[int]:
    found = list[int]()
    for pid in running.children:
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
