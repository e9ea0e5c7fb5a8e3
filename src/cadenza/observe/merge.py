"""The metrics of several processes as one: counters, histograms and most gauges are added."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

HIGHEST = {  # gauges that are a state, 1 if any process has it, or a time, of which the latest counts
    "cadenza_route_resting",
    "cadenza_route_failing",
    "cadenza_route_last_fault_timestamp_seconds",
}
LOWEST = {"cadenza_shared_state_up"}  # 0 if any process has it
COUNTED = {"counter", "histogram"}  # what a process has counted stays counted after its end

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    """One metric with its samples: name and labels -> value."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]]


def read_families(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            family.name,
            family.type,
            family.documentation,
            [(sample.name, tuple(sample.labels.items()), sample.value) for sample in family.samples],
        )
        for family in registry.collect()
    ]


def only_counted(families: Sequence[Family]) -> list[Family]:
    """Without the gauges, which say nothing about a process that has ended."""
    return [family for family in families if family.kind in COUNTED]


def merge(processes: Iterable[Sequence[Family]]) -> list[Family]:
    """The metrics of all processes, in the order in which they are first seen."""
    merged: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for families in processes:
        for family in families:
            merged.setdefault(family.name, family)
            found = values.setdefault(family.name, {})
            for name, labels, value in family.samples:
                before = found.get((name, labels))
                found[name, labels] = value if before is None else _combined(name, before, value)
    return [
        msgspec.structs.replace(family, samples=[(*key, value) for key, value in values[name].items()])
        for name, family in merged.items()
    ]


def _combined(name: str, one: float, other: float) -> float:
    if name in HIGHEST:
        return max(one, other)
    return min(one, other) if name in LOWEST or name.endswith("_created") else one + other


def render(families: Sequence[Family]) -> bytes:
    registry = CollectorRegistry()
    registry.register(Shown(families))
    return generate_latest(registry)


class Shown(Collector):
    """Families as the library wants them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
