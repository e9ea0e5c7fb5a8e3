"""A fleet: gateways, each a real `cadenza serve` in a folder of its own, behind nginx, on one database.

With links, each gateway reaches Postgres and the shared state over links of its own, which a test can break.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec

from tests import processes
from tests.fleet.cluster import Cluster
from tests.fleet.ledger import FleetLedger
from tests.fleet.nginx import Nginx
from tests.fleet.ports import free_port
from tests.link import Link, Target
from tests.service import ServiceProcess, wait_until
from tests.service_config import classes_spec

GATEWAYS = 3
SWEPT_S = 60.0
LOOPBACK = "127.0.0.1"
NO_STATE = "memory://"


class FleetSpec(msgspec.Struct, frozen=True):
    """What a fleet is made of. `state` is the socket of Valkey or Redis; None means that each process has its own.

    `clocks_s` are the seconds by which the gateways' clocks are wrong. A replica is the second host in the address of
    the store.
    """

    base_url: str
    limits: Mapping[str, float] = {}
    drain_s: float = 30.0
    state: Path | None = None
    has_links: bool = False
    clocks_s: tuple[float, ...] = ()
    replica_port: int | None = None


class Gateway:
    """One place of the fleet: a folder with a config, a port, its links, and the process that serves there now."""

    def __init__(self, folder: Path, port: int, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = port
        self.store_link: Link | None = None
        self.state_link: Link | None = None
        self._variables = variables
        self._started = list[ServiceProcess]()

    @property
    def process(self) -> ServiceProcess:
        return self._started[-1]

    @property
    def output(self) -> str:
        return "".join(process.output for process in self._started)

    @property
    def store(self) -> Link:
        assert self.store_link
        return self.store_link

    @property
    def state(self) -> Link:
        assert self.state_link
        return self.state_link

    def begin(self) -> None:
        log = self.folder / f"process-{len(self._started) + 1}.log"
        self._started.append(ServiceProcess(self.folder, log, port=self.port, variables=self._variables))

    def start(self) -> None:
        self.begin()
        self.process.wait_until_ready()

    def kill(self) -> None:
        for process in self._started:
            process.kill()


class Fleet:
    """`with Fleet(cluster, spec) as fleet` serves until the block ends; its gateways are killed then."""

    def __init__(self, cluster: Cluster, spec: FleetSpec, faketime: str = "") -> None:
        self.spec = spec
        self.cluster = cluster
        self.database = cluster.create_database()
        self.gateways = list[Gateway]()
        self._faketime = faketime
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cadenza-fleet-")))
        self._numbers = itertools.count(100_000)  # all of the same length, so that every prompt is

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.push(self._stack)
            self.gateways.extend(self._make_gateway(number) for number in range(GATEWAYS))
            self.ledger = FleetLedger(self.cluster.url(self.database))
            self.each(Gateway.start)
            self.nginx = self._stack.enter_context(Nginx(self.ports))
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(None, None, None)

    @property
    def port(self) -> int:
        """The port of nginx."""
        return self.nginx.port

    @property
    def ports(self) -> list[int]:
        """The ports of the gateways."""
        return [gateway.port for gateway in self.gateways]

    @property
    def output(self) -> str:
        """What all gateways printed."""
        return "".join(gateway.output for gateway in self.gateways)

    def new_number(self) -> int:
        """A number for one more request."""
        return next(self._numbers)

    def each(self, work: Callable[[Gateway], None]) -> None:
        with ThreadPoolExecutor(GATEWAYS) as threads:
            list(threads.map(work, self.gateways))

    def check(self) -> None:
        """Nothing is held any more, the ledger is sound, and no gateway met an error of its own."""
        self.ledger.check()
        assert "Traceback" not in self.output, self.output

    def check_drained(self) -> None:
        """Processes that were killed are swept, then every gateway ends by itself and leaves nothing behind."""
        wait_until(lambda: self.ledger.processes() == GATEWAYS, "the sweep of every killed process", SWEPT_S)
        self.each(lambda gateway: gateway.process.stop())
        assert self.ledger.still_held() == (0, 0, 0), self.output[-5000:]
        self.ledger.check()
        assert self.ledger.processes() == 0

    def _make_gateway(self, number: int) -> Gateway:
        spec, clocks_s = self.spec, self.spec.clocks_s
        clock = faked_clock(self._faketime, clocks_s[number]) if clocks_s else {}
        store_link = self._link((LOOPBACK, self.cluster.port)) if spec.has_links else None
        state_link = self._link(spec.state) if spec.has_links and spec.state else None
        state_url = f"unix://{spec.state}" if spec.state else NO_STATE
        if state_link:
            state_url = f"redis://{LOOPBACK}:{state_link.port}/0"
        config = self._write_config(f"gateway-{number}", state_url, store_link)
        gateway = Gateway(config.parent, free_port(), clock)
        gateway.store_link, gateway.state_link = store_link, state_link
        self._stack.callback(gateway.kill)
        return gateway

    def _link(self, target: Target) -> Link:
        return self._stack.enter_context(Link(target).running())

    def _write_config(self, name: str, state_url: str, link: Link | None) -> Path:
        url = self.cluster.url(self.database, link.port if link else None, self.spec.replica_port)
        return write_config(self._folder / name, self.spec, url, state_url)


def write_config(folder: Path, spec: FleetSpec, store_url: str, state_url: str) -> Path:
    """The path of a new config file in a new folder."""
    folder.mkdir()
    more_toml = f'[shared_state]\nurl = "{state_url}"\n\n[server]\ndrain_s = {spec.drain_s}\n'
    config = folder / "cadenza.toml"
    made = msgspec.structs.replace(
        classes_spec(spec.base_url), store_url=store_url, limits=spec.limits, more_toml=more_toml
    )
    config.write_text(made.toml())
    return config


@contextlib.contextmanager
def running_fleet(cluster: Cluster, spec: FleetSpec, faketime: str = "") -> Iterator[Fleet]:
    """A fleet whose gateways must end by themselves, and leave nothing behind. `faketime` is a library's path."""
    with Fleet(cluster, spec, faketime) as fleet:
        yield fleet
        fleet.check_drained()


def faked_clock(library: str, wrong_s: float) -> dict[str, str]:
    """The variables that set the wall clock of a process wrong, and leave its monotonic clock alone."""
    return {"LD_PRELOAD": library, "FAKETIME": f"{wrong_s:+.0f}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def stopped(gateway: Gateway) -> contextlib.AbstractContextManager[None]:
    """The process of the gateway does nothing during the block."""
    return processes.stopped([gateway.process.pid])


@contextlib.contextmanager
def cut_off(gateway: Gateway) -> Iterator[None]:
    """The gateway's connections to Postgres are closed, and new ones refused."""
    gateway.store.cut()
    try:
        yield
    finally:
        gateway.store.restore()


@contextlib.contextmanager
def stalled(gateway: Gateway) -> Iterator[None]:
    """Nothing passes between the gateway and Postgres, and nothing is closed."""
    gateway.store.stall()
    try:
        yield
    finally:
        gateway.store.resume()
