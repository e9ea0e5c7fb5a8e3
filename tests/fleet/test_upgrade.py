"""An upgrade under load, and the way back: a release and the next one serve from one store, to the nano."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from tests.cli.program import run, run_here
from tests.fleet.cluster import Cluster
from tests.fleet.requests import COST_NANO, LATE_STORE, USAGE, WORDS, FleetRequest
from tests.loopback import LoopbackUpstream, Wait, Whole
from tests.next_release import NEXT, first_release, next_release
from tests.raw_client import ChatRequest, Reply, send
from tests.service import EMAIL, PASSWORD, ServiceProcess, wait_until
from tests.service_config import classes_spec

CREDIT_NANO = 100 * 10**9
DRAINING = b"The service is restarting"  # to a request that arrived while its process stopped
CLIENTS = 6
STREAM_S = 0.3  # long enough that what a stream has delivered is marked in the store
SERVED = 12  # replies in each phase of the upgrade
pytestmark = pytest.mark.slow(reason="runs two releases beside each other")


Release = Mapping[str, str]  # the variables with which `cadenza` is its program


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return first_release(tmp_path_factory.mktemp("first-release"))


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return next_release(tmp_path_factory.mktemp("next-release"))


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that is not there yet, or empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/cadenza.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.execute("CREATE DATABASE upgrade")
    return cluster.url("upgrade")


class Fleet:
    """Processes of both releases on one store, and clients that go on while processes come and go."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.replies = list[Reply]()
        self._key = key
        self._ports = list[int]()
        self._processes = list[ServiceProcess]()
        self._numbers = itertools.count(100_000)

    async def start(self, release: Release) -> ServiceProcess:
        """Start a process and let the clients use it too."""
        log = self.folder / f"process-{len(self._processes)}.log"
        process = ServiceProcess(self.folder, log, variables=release)
        self._processes.append(process)
        await asyncio.to_thread(process.wait_until_ready)
        self._ports.append(process.port)
        return process

    async def stop(self, process: ServiceProcess) -> None:
        """Take it away from the clients, and end it as an operator does."""
        self._ports.remove(process.port)
        await asyncio.to_thread(process.stop)
        assert process.process.returncode == 0
        assert "Traceback" not in process.output, process.output

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    async def serve_more(self) -> None:
        """Wait until the processes that run now have served some more requests."""
        goal = len(self.replies) + SERVED
        await asyncio.to_thread(wait_until, lambda: len(self.replies) >= goal, f"{SERVED} more replies")

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Clients that send one request after the other during the block, over all ports in turn; half are streams."""
        is_over = asyncio.Event()

        async def client() -> None:
            while not is_over.is_set():
                number = next(self._numbers)
                kind = ChatRequest if number % 4 == 1 else FleetRequest
                port = self._ports[number // 4 % len(self._ports)]
                self.replies.append(await send(port, self._key, kind(number, stream=number % 2 == 0)))

        async with asyncio.TaskGroup() as running:
            for _ in range(CLIENTS):
                running.create_task(client())
            try:
                yield
            finally:
                is_over.set()


@contextlib.contextmanager
def fleet_of(first: Release, store_url: str, upstream: LoopbackUpstream, folder: Path) -> Iterator[Fleet]:
    """No process runs yet. The first release has made the store and an account."""
    config = folder / "cadenza.toml"
    config.write_text(msgspec.structs.replace(classes_spec(upstream.base_url), store_url=store_url).toml())
    create = ("account", "create", EMAIL, "--credit", "100.00", "--password-stdin")
    done = [
        run(folder, "migrate", **first),
        run(folder, *create, given=f"{PASSWORD}\n", **first),
        run(folder, "key", "create", "--account", EMAIL, **first),
    ]
    assert [one.returncode for one in done] == [0, 0, 0], done
    fleet = Fleet(folder, done[-1].stdout.strip())
    try:
        yield fleet
    finally:
        fleet.kill()


@pytest.mark.timeout(300)
def test_an_upgrade_under_load_and_the_way_back(
    first: Release, following: Release, store_url: str, upstream: LoopbackUpstream, tmp_path: Path
) -> None:
    """A migration beside the first release, the next release, and back: every nano is on the upstream's record."""
    upstream.always(Whole(WORDS, USAGE, Wait(STREAM_S)))

    async def run_through(fleet: Fleet) -> None:
        old = await fleet.start(first)
        async with fleet.load():
            await fleet.serve_more()
            migrated = await asyncio.to_thread(run, tmp_path, "migrate", **following)
            assert (migrated.returncode, NEXT in migrated.stderr) == (0, True), migrated
            await fleet.serve_more()
            new = await fleet.start(following)
            await fleet.serve_more()
            await fleet.stop(old)
            await fleet.serve_more()
            old = await fleet.start(first)
            await fleet.serve_more()
            await fleet.stop(new)
            await fleet.serve_more()
        await fleet.stop(old)

    with fleet_of(first, store_url, upstream, tmp_path) as fleet:
        asyncio.run(run_through(fleet))
        broken = [reply.raw for reply in fleet.replies if not reply.is_done]
        assert [raw for raw in broken if not any(words in raw for words in (*LATE_STORE, DRAINING))] == []
    checked = run_here(tmp_path, "ledger", "check")
    assert checked.returncode == 0, checked.stdout
    [account] = msgspec.json.decode(run_here(tmp_path, "account", "list", "--json").stdout)
    served = len(upstream.requests)
    assert served == sum(reply.is_done for reply in fleet.replies)
    assert Decimal(account["balance"]) * 10**9 == CREDIT_NANO - served * COST_NANO
    assert Decimal(account["held"]) == 0
