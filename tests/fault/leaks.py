"""What must hold after each fault: no slot, hold, place on a route, connection or task is left behind.

The bed is one service with three classes on one route, which differ in how long they wait: so the next request, on
whichever class, meets the very route that had the fault.
"""

import asyncio
import contextlib
import itertools
import os
import re
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.fault.faults import BOUNDED, BOUNDED_TOKENS, HURRIED, HURRY_S, PATIENT, TOTAL_S
from tests.fault.fleet import Fleet, wait_until
from tests.fault.wire import Ask, Seen, send
from tests.loopback import LoopbackUpstream
from tests.service import RELOADED, ServiceSpec

CREDIT_NANO = 5 * 10**9
LEAK_S = 10.0
AT_ONCE = 2  # so many requests, and as many connections that may be kept
LOOKS = 10  # at a service that is about to be idle
POLL_S = 0.01
GAUGE = re.compile(r"^(cadenza_\w+?)(?:\{.*\})? ([0-9.e+-]+)$", re.MULTILINE)
IDLE_GAUGES = ("cadenza_slots_taken", "cadenza_requests_in_flight", "cadenza_route_in_flight")
PATIENCE = {
    PATIENT: "connect_s = 10, first_token_s = 20, idle_s = 20",
    HURRIED: f"connect_s = {HURRY_S}, first_token_s = {HURRY_S}, idle_s = {HURRY_S}",
    BOUNDED: f"connect_s = 10, first_token_s = 20, idle_s = {HURRY_S}, total_s = {TOTAL_S}",
}


def bed_spec(base_url: str, hurried_url: str = "") -> ServiceSpec:
    """All classes at one address, or the hurried one at another."""
    providers = {"loopback": base_url} | ({"elsewhere": hurried_url} if hurried_url else {})
    tokens = dict.fromkeys(PATIENCE, 131_072) | {BOUNDED: BOUNDED_TOKENS}
    places = dict.fromkeys(PATIENCE, "loopback") | ({HURRIED: "elsewhere"} if hurried_url else {})
    routes = (
        f'[[classes.{class_id}.routes]]\nprovider = "{places[class_id]}"\nmodel = "loopback-large"\n'
        f"context_tokens = 1_000_000\nmax_output_tokens = {tokens[class_id]}\ntimeouts = {{ {timeouts} }}\n"
        for class_id, timeouts in PATIENCE.items()
    )
    return ServiceSpec(providers, {}, "\n".join(routes))


class Bed:
    """The service under test, the upstream with the faults, and the books."""

    def __init__(self, fleet: Fleet, upstream: LoopbackUpstream) -> None:
        self.upstream = upstream
        self.books = fleet.books
        self.key = fleet.key
        self._fleet = fleet
        self._node = fleet.start()
        self._numbers = itertools.count(1)
        assert self.send(self.new_ask(PATIENT, stream=False)).is_done
        looks = [(self._gauges()["cadenza_tasks"], self._count_sockets()) for _ in range(LOOKS)]
        self._tasks = min(tasks for tasks, _ in looks)
        self._sockets = min(sockets for _, sockets in looks) - 1  # which is kept to the upstream

    @property
    def port(self) -> int:
        return self._node.port

    @property
    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._node.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def make_ready(self) -> None:
        """Every route is fit, as it is once the config was read again, and the upstream is well."""
        self._read_config_again()
        self.upstream.reset()

    def new_ask(self, class_id: str, *, stream: bool, max_tokens: int | None = None) -> Ask:
        return Ask(next(self._numbers), class_id, stream, max_tokens)

    def send(self, ask: Ask, within_s: float = LEAK_S) -> Seen:
        """One request to its end."""
        return asyncio.run(send(self.port, self.key, ask, within_s=within_s))

    @contextlib.contextmanager
    def hurried_to(self, base_url: str) -> Iterator[None]:
        """The hurried class is sent elsewhere for a while."""
        self._configure(bed_spec(self.upstream.base_url, base_url))
        try:
            yield
        finally:
            self._configure(bed_spec(self.upstream.base_url))

    def check_nothing_leaks(self) -> None:
        """For what no event tells: the state of another process."""
        deadline_s = time.monotonic() + LEAK_S
        while leaks := self._find_leaks():
            assert time.monotonic() < deadline_s, f"left behind: {leaks}"
            time.sleep(POLL_S)

    def _find_leaks(self) -> dict[str, int]:
        gauges = self._gauges()
        found = {name: gauges[name] for name in IDLE_GAUGES}
        found["tasks"] = max(0, gauges["cadenza_tasks"] - self._tasks)
        found["sockets"] = max(0, self._count_sockets() - self._sockets - AT_ONCE)
        found["connections to the upstream"] = max(0, self.upstream.open_connections - AT_ONCE)
        found["open holds"] = self.books.open_holds
        found["held money"] = self.books.held_nano
        return {name: value for name, value in found.items() if value}

    def _configure(self, spec: ServiceSpec) -> None:
        (self._fleet.folder / "cadenza.toml").write_text(spec.toml())
        self._read_config_again()

    def _read_config_again(self) -> None:
        times = self._node.output.count(RELOADED)
        os.kill(self._node.pid, signal.SIGHUP)
        wait_until(lambda: self._node.output.count(RELOADED) > times, "the config being read again", LEAK_S)

    def _gauges(self) -> dict[str, int]:
        """The sum of each over its labels."""
        sums: dict[str, int] = defaultdict(int)
        for name, value in GAUGE.findall(self._node.get("/metrics")[1]):
            sums[name] += int(float(value))
        return sums

    def _count_sockets(self) -> int:
        return sum(_is_socket(path) for path in Path(f"/proc/{self._node.pid}/fd").iterdir())


def _is_socket(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


@contextlib.contextmanager
def made_bed() -> Iterator[Bed]:
    """A bed of its own; at its end the ledger is proven."""
    with LoopbackUpstream() as upstream, Fleet(upstream.base_url, CREDIT_NANO, bed_spec(upstream.base_url)) as fleet:
        bed = Bed(fleet, upstream)
        yield bed
        bed.books.prove()
