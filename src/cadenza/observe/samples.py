"""Metrics by name and labels: of this process, of all workers, or as `cadenza top` has read them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cadenza.observe.worker_metrics import Family, Labels

LAST_FAULT = "cadenza_route_last_fault_timestamp_seconds"


class SeenFault(NamedTuple):
    """The last fault of a route: when it was seen, its kind, and the status of the provider's reply."""

    at_s: float
    kind: str
    status: int | None


class Samples:
    """The values of all metrics at one time."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        for family in families:
            for name, labels, value in family.samples:
                self._values.setdefault(name, {})[labels] = value

    def of(self, name: str) -> Mapping[Labels, float]:
        return self._values.get(name, {})

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        wanted = set(labels.items())
        return sum(value for found, value in self.of(name).items() if wanted <= set(found))

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums by one label, in its order."""
        sums = dict[str, float]()
        for labels, value in self.of(name).items():
            part = dict(labels).get(label, "")
            sums[part] = sums.get(part, 0.0) + value
        return dict(sorted(sums.items()))

    def percentile(self, name: str, part: float) -> float | None:
        """The upper bound of the bucket of a histogram that this part of its values is in; None without any."""
        buckets = {float(bound): count for bound, count in self.by_label(f"{name}_bucket", "le").items()}
        total = max(buckets.values(), default=0.0)
        return next(bound for bound in sorted(buckets) if buckets[bound] >= part * total) if total else None

    def last_fault(self, provider: str, model: str) -> SeenFault | None:
        """The newest fault of a route."""
        wanted = {("provider", provider), ("model", model)}
        faults = [(at_s, dict(labels)) for labels, at_s in self.of(LAST_FAULT).items() if wanted <= set(labels)]
        if not faults:
            return None
        at_s, fault = max(faults, key=lambda sample: sample[0])
        return SeenFault(at_s, fault["kind"], int(fault["status"]) if fault["status"] else None)

    def since(self, before: "Samples") -> "Samples":
        """What was counted since an earlier reading. A counter that fell is of a new process: nothing."""
        grown = Samples(())
        for name, values in self._values.items():
            old = before.of(name)
            grown._values[name] = {at: max(0.0, value - old.get(at, 0.0)) for at, value in values.items()}
        return grown
