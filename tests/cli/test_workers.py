"""`workers = 2`: they serve, drain and reload like one process, are replaced when they die, and end with the parent."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cadenza.server.server import STARTUP_FAILURE
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import COMMAND_S, PROGRAM, ROOT, Server, run_here, serving, wait_until
from tests.environment import environment
from tests.loopback import LoopbackUpstream, Pause, Sse, chunk, said
from tests.processes import children, is_alive, read_of
from tests.raw_client import RawClient, read_all, read_until
from tests.service import RELOADED
from tests.service_config import RouteSpec, ServiceSpec

pytestmark = pytest.mark.slow(reason="starts several workers")

COUNT = 2
WORKERS_TOML = f"[server]\nworkers = {COUNT}\n"
FINISH = chunk(finish="stop")
FAILING = (
    "import sys; from cadenza.server.server import bind; from cadenza.server.workers import Workers; "
    f"sys.exit(Workers('tests.cli.broken_app:build', {COUNT}, bind('127.0.0.1', 0)).run())"
)


class Crew:
    """A server with two workers, and a client."""

    def __init__(self, server: Server, spec: ServiceSpec, key: str) -> None:
        self.server = server
        self.spec = spec
        self.wire = RawClient(server.port, key)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(lambda: len(self.workers) == COUNT and all(map(catches_hangup, self.workers)), "two", self.server)

    @property
    def workers(self) -> list[int]:
        return [pid for pid in children(self.server.pid) if b"spawn_main" in read_of(pid, "cmdline")]

    def serves(self, times: int = 12) -> bool:
        """Each request opens a connection, so that any worker may get it."""
        return all(self.wire.chat().status == 200 for _ in range(times))


def catches_hangup(pid: int) -> bool:
    """Whether the process catches SIGHUP. From then on none is lost."""
    caught = re.search(rb"^SigCgt:\t([0-9a-f]+)$", read_of(pid, "status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGHUP - 1))


def of_session(session: int) -> list[int]:
    """The living processes of a session."""
    left = list[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, own = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                left.append(int(entry.name))
    return left


@contextmanager
def crew_in(folder: Path, base_url: str) -> Iterator[Crew]:
    spec = ServiceSpec({"acme": base_url}, {"forte": [RouteSpec("acme", "one")]}, WORKERS_TOML)
    config = folder / "cadenza.toml"
    config.write_text(spec.toml())
    made = run_here(folder, "account", "create", EMAIL, "--credit", "5", "--password-stdin", given=PASSWORD)
    assert made.returncode == 0, made.stderr
    key = run_here(folder, "key", "create", "--account", EMAIL).stdout.strip()
    with serving(folder) as server:
        yield Crew(server, spec, key)


@pytest.fixture(scope="module")
def shared_crew(tmp_path_factory: pytest.TempPathFactory, shared_upstream: LoopbackUpstream) -> Iterator[Crew]:
    with crew_in(tmp_path_factory.mktemp("crew"), shared_upstream.base_url) as crew:
        yield crew


@pytest.fixture
def crew(shared_crew: Crew, upstream: LoopbackUpstream) -> Crew:
    """The shared crew, with its original config and all of its workers."""
    (shared_crew.server.folder / "cadenza.toml").write_text(shared_crew.spec.toml())
    shared_crew.wait_until_ready()
    return shared_crew


def test_two_workers_serve(crew: Crew) -> None:
    """There are two workers, and they serve requests one by one and at once."""
    assert len(crew.workers) == COUNT
    assert crew.serves()
    with ThreadPoolExecutor(10) as crowd:
        assert set(crowd.map(lambda _: crew.wire.chat(stream=True).status, range(40))) == {200}


def test_a_scrape_shows_both_workers(crew: Crew) -> None:
    """Whichever worker a connection reaches: the requests of both are shown, also once one was killed."""
    served = re.compile(r'^cadenza_requests_total\{endpoint="chat",status="200"\} (\S+)$', re.MULTILINE)

    def count() -> float:
        found = served.search(crew.wire.get("/metrics").body.decode())
        return float(found[1]) if found else 0.0

    before = count()
    assert crew.serves(20)
    assert {count() for _ in range(20)} == {before + 20}
    os.kill(crew.workers[0], signal.SIGKILL)
    assert count() == before + 20
    crew.wait_until_ready()
    assert {count() for _ in range(20)} == {before + 20}


def test_hangup_reaches_both_workers(crew: Crew, upstream: LoopbackUpstream) -> None:
    """One SIGHUP makes every worker reload the config."""
    before = crew.server.output.count(RELOADED)
    spec = ServiceSpec(crew.spec.providers, {"forte": [RouteSpec("acme", "two")]}, WORKERS_TOML)
    (crew.server.folder / "cadenza.toml").write_text(spec.toml())
    os.kill(crew.server.pid, signal.SIGHUP)
    wait_until(lambda: crew.server.output.count(RELOADED) == before + COUNT, "both to reload", crew.server)
    assert crew.serves()
    assert {request.json["model"] for request in upstream.requests} == {"two"}


def test_reload_command_reaches_both_workers(crew: Crew, upstream: LoopbackUpstream) -> None:
    """After `class reload` the next request of either worker uses the new config."""
    spec = ServiceSpec(crew.spec.providers, {"forte": [RouteSpec("acme", "three")]}, WORKERS_TOML)
    config = crew.server.folder / "cadenza.toml"
    config.write_text(spec.toml())
    assert run_here(crew.server.folder, "class", "reload").returncode == 0
    assert crew.serves()
    assert {request.json["model"] for request in upstream.requests} == {"three"}


def test_killed_worker_is_replaced(crew: Crew) -> None:
    """The other worker serves meanwhile, and a new one starts."""
    killed, kept = crew.workers
    os.kill(killed, signal.SIGKILL)
    assert crew.serves()
    wait_until(lambda: killed not in crew.workers, "the end of the killed worker", crew.server)
    wait_until(lambda: len(crew.workers) == COUNT, "two workers", crew.server)
    assert kept in crew.workers
    assert crew.serves()


def test_worker_dies_while_the_config_is_broken(crew: Crew) -> None:
    """The other worker goes on serving; once the config is correct, there are two again."""
    config = crew.server.folder / "cadenza.toml"
    config.write_text("[limits]\nburst = 0\n")
    killed, kept = crew.workers
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "limits.burst" in crew.server.output, "a failed start", crew.server)
    assert crew.serves()
    config.write_text(crew.spec.toml())
    crew.wait_until_ready()
    assert kept in crew.workers
    assert crew.serves()


def assert_drains_after(crew: Crew, upstream: LoopbackUpstream, end: Callable[[], None]) -> None:
    """A stream that runs when the drain begins is completed. Then no process is left."""
    everyone = children(crew.server.pid)
    pause = Pause()
    upstream.script(Sse([said("half"), pause, said(" done"), FINISH]))
    with crew.wire.open_chat(stream=True) as connection:
        read_until(connection, b'"half"')
        end()
        wait_until(lambda: '"draining"' in crew.server.output, "the workers' draining")
        pause.release()
        assert b"[DONE]" in read_all(connection)
    wait_until(lambda: not any(map(is_alive, everyone)), "the end of every process")


def test_workers_end_with_their_parent(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """When the parent is killed, its workers drain and end by themselves."""
    with crew_in(tmp_path, upstream.base_url) as crew:
        assert_drains_after(crew, upstream, lambda: os.kill(crew.server.pid, signal.SIGKILL))


@pytest.mark.parametrize("what", ["store", "application"])
def test_failed_start(tmp_path: Path, what: str) -> None:
    """A start that cannot succeed exits with an error code, is not retried for ever, and leaves no process."""
    toml = json.dumps(f"sqlite:///{tmp_path}/cadenza.toml/no.db")
    (tmp_path / "cadenza.toml").write_text(f"{WORKERS_TOML}[store]\nurl = {toml}\n")
    command = [str(PROGRAM), "serve", "--port", "0", "--config", str(tmp_path / "cadenza.toml")]
    process = subprocess.Popen(
        command if what == "store" else [sys.executable, "-c", FAILING],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _, said_ = process.communicate(timeout=COMMAND_S)
    assert process.returncode == (1 if what == "store" else STARTUP_FAILURE), said_
    wait_until(lambda: of_session(process.pid) == [], "the end of every process")


def test_sigterm_drains(crew: Crew, upstream: LoopbackUpstream) -> None:
    """SIGTERM reaches both workers: a stream completes, all processes end, the exit code is 0. It is the last test."""
    assert_drains_after(crew, upstream, lambda: os.kill(crew.server.pid, signal.SIGTERM))
    wait_until(crew.server.has_ended, "the end")
    assert crew.server.end(0) == 0
