"""What is known about a service at one moment. Pure: problems are found in it by health.py."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from cadenza.observe.minutes import MinuteRing
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family

RECENT_S = 5 * 60
HOUR_S = 60 * 60

RouteState = Literal["closed", "half open", "failing", "open", "resting"]
Counts = Mapping[str, Counter[str]]  # name of a counter -> its label -> what it counted


class RouteFact(msgspec.Struct, frozen=True):
    """A model of a provider, its last fault, and its requests in flight."""

    provider: str
    model: str
    state: RouteState = "closed"  # of its circuit; or closed, but it fails; or it rests by hand
    fault: str = ""
    status: int | None = None
    fault_at_s: float = 0.0
    in_flight: int = 0
    limit: int = 0

    @property
    def is_broken(self) -> bool:
        return self.state in ("failing", "open")

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics say of the processes of a machine, and what the process that collects it knows by itself."""

    is_draining: bool = False
    no_route: bool = False  # none can be expected to answer
    store_failure: str = ""  # why the store takes no writes
    store_advice: str = ""
    write_s: float = 0.0  # how long a trial write took
    charge_wait_s: float = 0.0  # of the charge that has waited for the store for the longest time
    disk_free_bytes: int | None = None  # None: the store is not on this machine
    routes: Sequence[RouteFact] = ()
    slots_taken: int = 0
    slots_limit: int = 0
    samples: Samples = Samples(())  # the rest; of a metric without a sample nothing is said
    notes: Mapping[str, str] = {}  # kind of a problem -> what is wrong in this process
    recent: Counts = {}  # what was counted in the last five minutes
    hour: Counts = {}  # in the last hour

    def count(self, name: str, label: str = "") -> int:
        """What a counter counted in the last five minutes."""
        return self.recent.get(name, Counter())[label]

    def count_of_hour(self, name: str) -> Counter[str]:
        return self.hour.get(name, Counter())


def read_facts(families: Iterable[Family], minutes: MinuteRing, now_s: float) -> Facts:
    """What the metrics say."""
    samples = Samples(families)
    return Facts(
        charge_wait_s=samples.total("cadenza_ledger_longest_wait_seconds"),
        routes=read_routes(samples),
        slots_taken=int(samples.total("cadenza_slots_taken")),
        slots_limit=int(samples.total("cadenza_slots_limit")),
        samples=samples,
        recent=minutes.since(now_s - RECENT_S),
        hour=minutes.since(now_s - HOUR_S),
    )


def read_routes(samples: Samples) -> list[RouteFact]:
    """Each route once. The circuit is that of each process: it is shown open if it is open in any."""
    places = sorted((dict(one)["provider"], dict(one)["model"]) for one in samples.of("cadenza_route_limit"))
    return [_read_route(samples, *place) for place in places]


def _read_route(samples: Samples, provider: str, model: str) -> RouteFact:
    def total(name: str, **labels: str) -> int:
        return int(samples.total(f"cadenza_route_{name}", provider=provider, model=model, **labels))

    state: RouteState = "half open" if total("state", state="half_open") else "closed"
    if total("resting"):
        state = "resting"
    elif total("state", state="open"):
        state = "open"
    elif total("failing"):
        state = "failing"
    seen = samples.last_fault(provider, model)
    fault = (seen.kind, seen.status, seen.at_s) if seen else ("", None, 0.0)
    return RouteFact(provider, model, state, *fault, total("in_flight"), total("limit"))
