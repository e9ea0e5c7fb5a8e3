"""The rig for upstream faults, and the check that a fault leaves nothing behind: no slot, hold, connection or task.

The rig is one service whose three classes share one route and differ only in their timeouts. So the next request, on
any class, uses the very route that had the fault.
"""

import asyncio
import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.fault.faults import BOUNDED, BOUNDED_TOKENS, HURRIED, HURRY_S, PATIENT, TOTAL_S
from tests.loopback import LoopbackUpstream
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Service, wait_until
from tests.service_config import ServiceSpec

AT_ONCE = 2  # requests at once, and connections that may be kept
READINGS = 10  # of a service that is about to be idle
GAUGE = re.compile(r"^(cadenza_\w+?)(?:\{.*\})? ([0-9.e+-]+)$", re.MULTILINE)
IDLE_GAUGES = ("cadenza_holds", "cadenza_slots_taken", "cadenza_requests_in_flight", "cadenza_route_in_flight")
TIMEOUTS = {
    PATIENT: "connect_s = 60, first_token_s = 60, idle_s = 60",
    HURRIED: f"connect_s = {HURRY_S}, first_token_s = {HURRY_S}, idle_s = {HURRY_S}",
    BOUNDED: f"connect_s = 60, first_token_s = 60, idle_s = {HURRY_S}, total_s = {TOTAL_S}",
}


def rig_spec(base_url: str, hurried_url: str = "") -> ServiceSpec:
    """All classes at one address, or the hurried one at another."""
    providers = {"loopback": base_url} | ({"elsewhere": hurried_url} if hurried_url else {})
    tokens = dict.fromkeys(TIMEOUTS, 131_072) | {BOUNDED: BOUNDED_TOKENS}
    names = dict.fromkeys(TIMEOUTS, "loopback") | ({HURRIED: "elsewhere"} if hurried_url else {})
    routes = (
        f'[[classes.{class_id}.routes]]\nprovider = "{names[class_id]}"\nmodel = "loopback-large"\n'
        f"context_tokens = 1_000_000\nmax_output_tokens = {tokens[class_id]}\ntimeouts = {{ {timeouts} }}\n"
        for class_id, timeouts in TIMEOUTS.items()
    )
    return ServiceSpec(providers, {}, "\n".join(routes))


class FaultRig:
    """The service under test, the upstream with the faults, and the ledger."""

    def __init__(self, service: Service, upstream: LoopbackUpstream) -> None:
        self.upstream = upstream
        self.ledger = service.ledger
        self.key = service.key
        self.process = service.process
        self._config = service.config
        self._numbers = itertools.count(1)
        assert self.send(self.new_request(PATIENT, stream=False)).is_done
        readings = [(self._gauges()["cadenza_tasks"], self._count_sockets()) for _ in range(READINGS)]
        self._tasks = min(tasks for tasks, _ in readings)
        self._sockets = min(sockets for _, sockets in readings) - 1  # the connection that is kept to the upstream

    @property
    def port(self) -> int:
        return self.process.port

    def make_ready(self) -> None:
        """Make every route healthy, by reading the config again, and the upstream too."""
        self.process.reload()
        self.upstream.reset()

    def new_request(self, class_id: str, *, stream: bool, max_tokens: int | None = None) -> ChatRequest:
        return ChatRequest(next(self._numbers), class_id, stream, max_tokens)

    def send(self, request: ChatRequest) -> Reply:
        """One request to its end."""
        return asyncio.run(send(self.port, self.key, request))

    @contextlib.contextmanager
    def hurried_to(self, base_url: str) -> Iterator[None]:
        """The hurried class has another address during the block."""
        self._configure(rig_spec(self.upstream.base_url, base_url))
        try:
            yield
        finally:
            self._configure(rig_spec(self.upstream.base_url))

    def check_nothing_leaks(self) -> None:
        leaks = self._find_leaks()

        def is_clean() -> bool:
            nonlocal leaks
            leaks = self._find_leaks()
            return not leaks

        if leaks:
            try:
                wait_until(is_clean, "an idle service")
            except AssertionError:
                raise AssertionError(f"left behind: {leaks}") from None

    def _find_leaks(self) -> dict[str, int]:
        gauges = self._gauges()
        found = {name: gauges[name] for name in IDLE_GAUGES}
        found["tasks"] = max(0, gauges["cadenza_tasks"] - self._tasks)
        found["sockets"] = max(0, self._count_sockets() - self._sockets - AT_ONCE)
        found["connections to the upstream"] = max(0, self.upstream.open_connections - AT_ONCE)
        return {name: value for name, value in found.items() if value}

    def _configure(self, spec: ServiceSpec) -> None:
        self._config.write_text(spec.toml())
        self.process.reload()

    def _gauges(self) -> dict[str, int]:
        """The sum of each gauge over its labels."""
        sums: dict[str, int] = defaultdict(int)
        for name, value in GAUGE.findall(self.process.get("/metrics")[1]):
            sums[name] += int(float(value))
        return sums

    def _count_sockets(self) -> int:
        """Only root may look into the service. For others it is 0, so that they check everything else."""
        try:
            return sum(_is_socket(path) for path in Path(f"/proc/{self.process.pid}/fd").iterdir())
        except PermissionError:
            return 0


def _is_socket(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("socket:")
    except OSError:  # closed in the meantime
        return False


@contextlib.contextmanager
def running_rig() -> Iterator[FaultRig]:
    """A rig; at the end its ledger is checked."""
    with LoopbackUpstream() as upstream, Service(rig_spec(upstream.base_url)) as service:
        rig = FaultRig(service, upstream)
        yield rig
        rig.ledger.check()
