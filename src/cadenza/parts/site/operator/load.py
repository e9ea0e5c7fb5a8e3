"""The live load, and the page of classes, where a route can rest.

The load is that of this machine: what its worker processes serve at this moment, and the health of every route. Numbers
are sums over the workers. Counters count from the start of the service; a script turns them into rates.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from starlette.responses import Response

from cadenza.control.route_rests import rest_route, resume_route
from cadenza.core.breaker import HALF_OPEN, OPEN
from cadenza.core.faults import advise
from cadenza.core.formats import rfc3339
from cadenza.core.public import to_record
from cadenza.core.records import Route
from cadenza.core.spans import parse_duration_ms
from cadenza.gateway.gateway import Gateway
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family
from cadenza.parts.site.docs.pages import is_usable
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.routing.catalogue import ServedClass
from cadenza.routing.health import RouteHealth
from cadenza.store.tables.route_rests import RouteRest, list_since

State = Literal["usable", "failing", "half_open", "circuit_open", "resting"]
ClassLoadState = Literal["usable", "failing", "resting"]
CLASSES = "/operator/classes"


class LastFault(msgspec.Struct, frozen=True):
    """The last request to a model that failed: the kind of fault, the status of the provider's reply, and when."""

    kind: str
    status: int | None
    at: str


class Rest(msgspec.Struct, frozen=True):
    """Until when an operator keeps requests from a model, and who does."""

    until: str
    by: str


class ModelLoad(msgspec.Struct, frozen=True):
    """A model of a provider: its requests in flight over all classes that use it, and the most it is given at once.

    The last requests to a failing model were not answered. After repeated failures its circuit opens, and it gets no
    requests for `open_s`; half-open, one request at a time tests whether it works again. A resting model gets no
    requests by hand of an operator.
    """

    provider: str
    model: str
    classes: list[str]
    state: State
    open_s: float
    in_flight: int
    ceiling: int
    last_fault: LastFault | None
    advice: str  # what to do, while it is not usable
    rest: Rest | None


class RouteFacts(msgspec.Struct, frozen=True):
    """A route of the version that is served."""

    provider: str
    model: str
    order: int
    weight: int
    context_tokens: int
    max_output_tokens: int


class ClassLoad(msgspec.Struct, frozen=True):
    """A class and its routes, in the order in which they are tried, and the number of the version that has them.

    All routes of a resting class rest.
    """

    id: str
    state: ClassLoadState
    routes: list[RouteFacts]
    version: int | None


class Count(msgspec.Struct, frozen=True):
    """How often something happened since the start of the service."""

    name: str
    count: int


class Load(msgspec.Struct, frozen=True):
    """What the service does at this moment. `requests` counts replies by status, `faults` failures by provider."""

    workers: int
    in_flight: int
    slots_taken: int
    slots_limit: int
    is_draining: bool
    has_shared_state: bool  # false while Valkey does not answer
    requests: list[Count]
    refused: list[Count]
    faults: list[Count]
    models: list[ModelLoad]
    classes: list[ClassLoad]


async def classes_page(visit: Visit) -> Response:
    load = await get_load(visit)
    classes = visit.service.gateway.snapshot.catalogue.served()
    prices = {one.plan.class_id: one.prices for one in classes}
    return visit.page("operator/classes.html", prices=prices, classes=classes, load=load)


async def get_load(visit: Visit) -> Load:
    rests = await list_since(visit.store, visit.now_ms)
    return view_load(visit.service.gateway, await visit.service.read_metrics(), rests)


async def rest(visit: Visit, route: str, time: str) -> None:
    names = {one.name: one for one in visit.service.gateway.snapshot.catalogue.routes()}
    await rest_route(visit.store, route, parse_duration_ms(time), names, visit.operator, visit.now_ms)


async def resume(visit: Visit, route: str) -> None:
    await resume_route(visit.store, route, visit.operator, visit.now_ms)


def view_load(gateway: Gateway, families: Iterable[Family], rests: Iterable[RouteRest]) -> Load:
    samples, slots = Samples(families), gateway.slots
    workers = int(samples.total("cadenza_workers"))
    return Load(
        workers=workers,
        in_flight=max(0, int(samples.total("cadenza_requests_in_flight")) - 1),  # without this request
        slots_taken=int(samples.total("cadenza_slots_taken")),
        slots_limit=slots.ceiling if slots.is_lent else slots.ceiling * workers,
        is_draining=gateway.in_flight.is_draining,
        has_shared_state=samples.total("cadenza_shared_state_up") > 0,
        requests=_counts(samples, "cadenza_requests_total", "status"),
        refused=_counts(samples, "cadenza_refused_total", "reason"),
        faults=_counts(samples, "cadenza_upstream_faults_total", "provider"),
        models=_model_loads(gateway, samples, {one.route: one for one in rests}),
        classes=[_class_load(gateway, served) for served in gateway.snapshot.catalogue.served()],
    )


def _counts(samples: Samples, name: str, label: str) -> list[Count]:
    return [Count(part, int(count)) for part, count in samples.by_label(name, label).items()]


def _class_load(gateway: Gateway, served: ServedClass) -> ClassLoad:
    routes = [to_record(RouteFacts, one) for one in served.plan.routes]
    is_resting = all(gateway.dispatcher.health.of(route).is_resting for route in served.plan.routes)
    state: ClassLoadState = "usable" if is_usable(gateway, served) else "resting" if is_resting else "failing"
    return ClassLoad(served.plan.class_id, state, routes, served.version)


def _model_loads(gateway: Gateway, samples: Samples, rests: Mapping[str, RouteRest]) -> list[ModelLoad]:
    """Each model once, however many classes use it: its requests in flight are those of all of them."""
    classes = dict[tuple[str, str], list[str]]()
    routes = dict[tuple[str, str], Route]()
    for served in gateway.snapshot.catalogue.served():
        for route in served.plan.routes:
            place = (route.provider, route.model)
            routes.setdefault(place, route)
            used_by = classes.setdefault(place, [])
            if served.plan.class_id not in used_by:
                used_by.append(served.plan.class_id)
    return [
        _model_load(gateway.dispatcher.health.of(route), route, classes[at], samples, rests.get(route.name))
        for at, route in routes.items()
    ]


def _model_load(
    health: RouteHealth, route: Route, classes: list[str], samples: Samples, rest: RouteRest | None
) -> ModelLoad:
    """The circuit breaker is that of this process, but a model whose circuit is open in any process is shown so."""
    place = {"provider": route.provider, "model": route.model}
    state: State = "half_open" if health.is_in(HALF_OPEN) else "usable"
    if health.is_failing or samples.total("cadenza_route_failing", **place) > 0:
        state = "failing"
    if health.is_in(OPEN) or samples.total("cadenza_route_state", **place, state="open") > 0:
        state = "circuit_open"
    if rest:
        state = "resting"
    seen = samples.last_fault(route.provider, route.model)
    return ModelLoad(
        provider=route.provider,
        model=route.model,
        classes=classes,
        state=state,
        open_s=round(health.open_s, 1),
        in_flight=int(samples.total("cadenza_route_in_flight", **place)) or health.in_flight,
        ceiling=int(samples.total("cadenza_route_limit", **place)) or health.limit,
        last_fault=LastFault(seen.kind, seen.status, rfc3339(round(seen.at_s * 1000))) if seen else None,
        advice="" if state in {"usable", "resting"} else advise(seen.kind if seen else ""),
        rest=Rest(rfc3339(rest.until_at), rest.actor) if rest else None,
    )


ROUTES: Routes = (
    get(CLASSES, classes_page),
    form("/operator/routes/rest", rest, CLASSES, "route-rests", on_error=classes_page, needs_proof=True),
    form("/operator/routes/resume", resume, CLASSES, "route-resumed", on_error=classes_page, needs_proof=True),
    endpoint(
        "GET", "/operator/load", "Show the live load, and the health of every route", get_load, "operator.service:read"
    ),
)
