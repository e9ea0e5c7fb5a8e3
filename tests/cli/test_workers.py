"""`workers = 2`: they serve, drain and reload like one process, are replaced when they die, and never outlive it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.cli import app
from cadenza.server.server import STARTUP_FAILURE
from tests.cli.conftest import EMAIL, PASSWORD
from tests.cli.program import COMMAND_S, PROGRAM, ROOT, Server, is_alive, serving, wait_until
from tests.contract.wire import Wire, read_all, read_until
from tests.loopback import LoopbackUpstream, Pause, Sse, chunk, said
from tests.service import RELOADED, RouteSpec, ServiceSpec, environment

COUNT = 2
WORKERS_TOML = f"[server]\nworkers = {COUNT}\n"
FINISH = chunk(finish="stop")
FAILING = (
    "import sys; from cadenza.server.server import bind; from cadenza.server.workers import Workers; "
    f"sys.exit(Workers('tests.cli.broken_app:build', {COUNT}, bind('127.0.0.1', 0)).run())"
)


class Crew:
    """A server of two workers, and a client of it."""

    def __init__(self, server: Server, spec: ServiceSpec, key: str) -> None:
        self.server = server
        self.spec = spec
        self.wire = Wire(server.port, key)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(lambda: len(self.workers) == COUNT and all(map(heeds_hangup, self.workers)), "two", self.server)

    @property
    def workers(self) -> list[int]:
        return [pid for pid in children_of(self.server.pid) if b"spawn_main" in read_of(pid, "cmdline")]

    def serves(self, times: int = 12) -> bool:
        """Each request has a connection of its own, so that any worker may get it."""
        return all(self.wire.chat().status == 200 for _ in range(times))


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def read_of(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def heeds_hangup(pid: int) -> bool:
    """From then on none is lost: one that comes during the start is heeded after it."""
    caught = re.search(rb"^SigCgt:\t([0-9a-f]+)$", read_of(pid, "status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGHUP - 1))


def of_session(session: int) -> list[int]:
    """The processes that are left of a session."""
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
    made = CliRunner().invoke(
        app,
        ["account", "create", EMAIL, "--credit", "5", "--password-stdin", "--config", str(config)],
        input=PASSWORD,
    )
    assert made.exit_code == 0, made.output
    key = CliRunner().invoke(app, ["key", "create", "--account", EMAIL, "--config", str(config)]).stdout.strip()
    with serving(folder) as server:
        yield Crew(server, spec, key)


@pytest.fixture(scope="module")
def shared_crew(tmp_path_factory: pytest.TempPathFactory, shared_upstream: LoopbackUpstream) -> Iterator[Crew]:
    with crew_in(tmp_path_factory.mktemp("crew"), shared_upstream.base_url) as crew:
        yield crew


@pytest.fixture
def crew(shared_crew: Crew, upstream: LoopbackUpstream) -> Crew:
    """The crew that tests share, with its own file and all of its workers."""
    (shared_crew.server.folder / "cadenza.toml").write_text(shared_crew.spec.toml())
    shared_crew.wait_until_ready()
    return shared_crew


def test_two_workers_serve(crew: Crew) -> None:
    """There are two, and requests that come one by one and at once are served."""
    assert len(crew.workers) == COUNT
    assert crew.serves()
    with ThreadPoolExecutor(10) as crowd:
        assert set(crowd.map(lambda _: crew.wire.chat(stream=True).status, range(40))) == {200}


def test_a_hangup_reaches_both(crew: Crew, upstream: LoopbackUpstream) -> None:
    """One SIGHUP has every worker read the config again."""
    before = crew.server.output.count(RELOADED)
    spec = ServiceSpec(crew.spec.providers, {"forte": [RouteSpec("acme", "two")]}, WORKERS_TOML)
    (crew.server.folder / "cadenza.toml").write_text(spec.toml())
    os.kill(crew.server.pid, signal.SIGHUP)
    wait_until(lambda: crew.server.output.count(RELOADED) == before + COUNT, "both reading again", crew.server)
    assert crew.serves()
    assert {request.json["model"] for request in upstream.requests} == {"two"}


def test_the_command_reaches_both(crew: Crew, upstream: LoopbackUpstream) -> None:
    """After `classes reload` the very next request of whichever worker sees the new file."""
    spec = ServiceSpec(crew.spec.providers, {"forte": [RouteSpec("acme", "three")]}, WORKERS_TOML)
    config = crew.server.folder / "cadenza.toml"
    config.write_text(spec.toml())
    assert CliRunner().invoke(app, ["classes", "reload", "--config", str(config)]).exit_code == 0
    assert crew.serves()
    assert {request.json["model"] for request in upstream.requests} == {"three"}


def test_a_worker_that_is_killed_is_replaced(crew: Crew) -> None:
    """The other one serves meanwhile, and soon there are two again."""
    killed, kept = crew.workers
    os.kill(killed, signal.SIGKILL)
    assert crew.serves()
    wait_until(lambda: len(crew.workers) == COUNT, "two workers", crew.server)
    assert kept in crew.workers
    assert killed not in crew.workers
    assert crew.serves()


def test_a_worker_that_dies_while_the_file_is_broken(crew: Crew) -> None:
    """The other one goes on serving; when the file is mended there are two again."""
    config = crew.server.folder / "cadenza.toml"
    config.write_text("[limits]\nburst = 0\n")
    killed, kept = crew.workers
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "limits.burst" in crew.server.output, "a try that fails", crew.server)
    assert crew.serves()
    config.write_text(crew.spec.toml())
    crew.wait_until_ready()
    assert kept in crew.workers
    assert crew.serves()


def ends_after(crew: Crew, upstream: LoopbackUpstream, end: Callable[[], None]) -> None:
    """A stream that runs when the end begins is drained: it ends whole. Then nobody is left."""
    everyone = children_of(crew.server.pid)
    pause = Pause()
    upstream.script(Sse([said("half"), pause, said(" done"), FINISH]))
    with crew.wire.open_chat(stream=True) as connection:
        read_until(connection, b'"half"')
        end()
        wait_until(lambda: '"draining"' in crew.server.output, "the workers' draining")
        pause.release()
        assert b"[DONE]" in read_all(connection)
    wait_until(lambda: not any(map(is_alive, everyone)), "the end of every process")


def test_a_signal_to_end_drains(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """SIGTERM reaches both, a stream under way ends whole, all processes end and the exit code is 0."""
    with crew_in(tmp_path, upstream.base_url) as crew:
        ends_after(crew, upstream, lambda: os.kill(crew.server.pid, signal.SIGTERM))
        wait_until(crew.server.has_ended, "the end")
        assert crew.server.end(0) == 0


def test_workers_do_not_outlive_who_started_them(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """When the parent is killed its workers drain and end by themselves."""
    with crew_in(tmp_path, upstream.base_url) as crew:
        ends_after(crew, upstream, lambda: os.kill(crew.server.pid, signal.SIGKILL))


@pytest.mark.parametrize("what", ["store", "application"])
def test_a_start_that_fails(tmp_path: Path, what: str) -> None:
    """A start that cannot succeed ends with a code that is not 0, is not tried for ever, and leaves no process."""
    toml = json.dumps(f"sqlite:///{tmp_path}/cadenza.toml/no.db")
    (tmp_path / "cadenza.toml").write_text(f"{WORKERS_TOML}[store]\nurl = {toml}\n")
    command = [str(PROGRAM), "serve", "--port", "0", "--config", str(tmp_path / "cadenza.toml")]
    started_s = time.monotonic()
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
    assert time.monotonic() - started_s < COMMAND_S
    wait_until(lambda: of_session(process.pid) == [], "the end of every process")
