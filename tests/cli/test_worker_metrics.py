"""/metrics of a service with `workers = 3`: one scrape shows all of them."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.loopback import LoopbackUpstream
from tests.processes import children, read_of, stopped
from tests.raw_client import RawClient
from tests.service import Service, wait_until
from tests.service_config import classes_spec

pytestmark = pytest.mark.slow(reason="starts several workers")

COUNT = 3
CHATS = 30
SERVED = re.compile(r'^cadenza_requests_total\{endpoint="chat",status="200"\} (\S+)$', re.MULTILINE)
WORKERS = re.compile(r"^cadenza_workers (\S+)$", re.MULTILINE)


class Crew:
    """A service with three workers, and its metrics."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.wire = RawClient(service.port, service.key)

    @property
    def pids(self) -> list[int]:
        return [pid for pid in children(self.service.pid) if b"spawn_main" in read_of(pid, "cmdline")]

    def scrape(self) -> tuple[int, int]:
        """The chats that were served, and the number of workers that are shown."""
        text = self.service.process.get("/metrics")[1]
        served, workers = SERVED.search(text), WORKERS.search(text)
        assert workers
        return int(float(served[1])) if served else 0, int(float(workers[1]))

    def wait_for(self, workers: int) -> int:
        """Wait for a scrape that shows so many workers, and return the chats in it. A busy one may miss a scrape."""
        served = 0

        def is_shown() -> bool:
            nonlocal served
            served, shown = self.scrape()
            return shown == workers

        wait_until(is_shown, f"{workers} workers being shown")
        return served

    def serve(self) -> None:
        assert {self.wire.chat().status for _ in range(CHATS)} == {200}


@pytest.fixture(scope="module")
def shared_crew(shared_upstream: LoopbackUpstream) -> Iterator[Crew]:
    spec = msgspec.structs.replace(classes_spec(shared_upstream.base_url), more_toml=f"[server]\nworkers = {COUNT}\n")
    with Service(spec) as service:
        crew = Crew(service)
        crew.wait_for(COUNT)
        yield crew


@pytest.fixture
def crew(shared_crew: Crew, upstream: LoopbackUpstream) -> Crew:
    return shared_crew


def test_each_scrape_shows_all_workers(crew: Crew) -> None:
    """Every new connection may reach another worker; all of them show every request that was served."""
    before = crew.wait_for(COUNT)
    crew.serve()
    assert crew.wait_for(COUNT) == before + CHATS
    assert {crew.scrape()[0] for _ in range(CHATS)} == {before + CHATS}
    assert crew.service.process.metric("cadenza_slots_taken") == 0


def test_a_killed_worker_stays_counted(crew: Crew) -> None:
    """While it is gone and after it is replaced, the sum stays, and goes on from there."""
    crew.serve()
    before, killed = crew.wait_for(COUNT), crew.pids[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{killed}/exe").exists(), "the end of the worker")
    assert crew.scrape()[0] == before
    assert crew.wait_for(COUNT) == before
    crew.serve()
    assert crew.wait_for(COUNT) == before + CHATS


def test_a_stopped_worker_holds_up_no_scrape(crew: Crew) -> None:
    """The others answer without waiting for it: with its last counters, and with one worker less."""
    before = crew.wait_for(COUNT)
    with stopped(crew.pids[:1]):
        assert crew.wait_for(COUNT - 1) == before
    assert crew.wait_for(COUNT) == before
