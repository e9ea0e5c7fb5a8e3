"""The live load of this machine: what its worker processes serve at this moment, and the health of every route.

Numbers are sums over the workers. Counters grow from the start of the service; a script makes rates of them.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from cadenza.core.records import Route
from cadenza.gateway.gateway import Gateway
from cadenza.observe.merge import Family, Labels
from cadenza.routing.breaker import HALF_OPEN, OPEN
from cadenza.routing.catalogue import ServedClass
from cadenza.web.docs import is_usable

RouteState = Literal["usable", "trial", "resting"]


class RouteLoad(msgspec.Struct, frozen=True):
    """A route, its requests in flight and the most that it is given at once. A resting route has failed."""

    provider: str
    model: str
    order: int
    weight: int
    context_tokens: int
    max_output_tokens: int
    state: RouteState
    rest_s: float
    in_flight: int
    ceiling: int


class ClassLoad(msgspec.Struct, frozen=True):
    """A class and its routes, in the order in which they are tried."""

    id: str
    is_usable: bool
    routes: list[RouteLoad]


class Count(msgspec.Struct, frozen=True):
    """How often something happened since the start."""

    name: str
    count: int


class Load(msgspec.Struct, frozen=True):
    """What the service does at this moment. `requests` counts replies by status, `faults` failures by provider."""

    workers: int
    in_flight: int
    slots_taken: int
    slots_limit: int
    is_draining: bool
    requests: list[Count]
    refused: list[Count]
    faults: list[Count]
    classes: list[ClassLoad]


class Samples:
    """Metrics by name and labels."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        for family in families:
            for name, labels, value in family.samples:
                self._values.setdefault(name, {})[labels] = value

    def total(self, name: str, **labels: str) -> int:
        """The sum of the samples that have these labels."""
        wanted = set(labels.items())
        return int(sum(value for found, value in self._of(name).items() if wanted <= set(found)))

    def by_label(self, name: str, label: str) -> list[Count]:
        """The sums by one label, in its order."""
        sums: dict[str, float] = {}
        for labels, value in self._of(name).items():
            key = dict(labels)[label]
            sums[key] = sums.get(key, 0) + value
        return [Count(key, int(sums[key])) for key in sorted(sums)]

    def _of(self, name: str) -> Mapping[Labels, float]:
        return self._values.get(name, {})


def read_load(gateway: Gateway, families: Iterable[Family]) -> Load:
    samples = Samples(families)
    workers, slots = samples.total("cadenza_workers"), gateway.slots
    return Load(
        workers=workers,
        in_flight=max(0, samples.total("cadenza_requests_in_flight") - 1),  # without the one that asks
        slots_taken=samples.total("cadenza_slots_taken"),
        slots_limit=slots.ceiling if slots.is_lent else slots.ceiling * workers,
        is_draining=gateway.is_draining,
        requests=samples.by_label("cadenza_requests_total", "status"),
        refused=samples.by_label("cadenza_refused_total", "reason"),
        faults=samples.by_label("cadenza_upstream_faults_total", "provider"),
        classes=[_class_load(gateway, served, samples) for served in gateway.snapshot.catalogue.served()],
    )


def _class_load(gateway: Gateway, served: ServedClass, samples: Samples) -> ClassLoad:
    routes = [_route_load(gateway, route, samples) for route in served.plan.routes]
    return ClassLoad(served.plan.class_id, is_usable(gateway, served), routes)


def _route_load(gateway: Gateway, route: Route, samples: Samples) -> RouteLoad:
    """The breaker is that of this process, but a route that rests in another one is shown as resting too."""
    health = gateway.dispatcher.health.of(route)
    place = {"provider": route.provider, "model": route.model}
    rests = health.state is OPEN or samples.total("cadenza_route_resting", **place) > 0
    state: RouteState = "resting" if rests else "trial" if health.state is HALF_OPEN else "usable"
    return RouteLoad(
        provider=route.provider,
        model=route.model,
        order=route.order,
        weight=route.weight,
        context_tokens=route.context_tokens,
        max_output_tokens=route.max_output_tokens,
        state=state,
        rest_s=round(health.rest_s, 1),
        in_flight=samples.total("cadenza_route_in_flight", **place) or health.in_flight,
        ceiling=samples.total("cadenza_route_limit", **place) or health.limit,
    )
