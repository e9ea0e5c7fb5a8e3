"""What the config says about classes, as the records of the parts that do not read it; and which version is served."""

from collections.abc import Iterable, Mapping

from cadenza import clock
from cadenza.config.kinds import kind_of
from cadenza.config.load import make_route
from cadenza.config.settings import CandidateSettings, ClassSettings, Settings
from cadenza.control.class_changes import ClassRules
from cadenza.control.class_versions import ServingProcess, resolve
from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.config_keys import suggest
from cadenza.core.money import Price
from cadenza.core.records import Route
from cadenza.store.store import Store


async def resolve_classes(
    store: Store, settings: Settings, process: ServingProcess | None = None
) -> dict[str, ClassState]:
    """Which version of each class is served. ControlError if a class has no routes or unfit providers."""
    configured, providers = settings.configured_classes(), settings.retention_of_providers()
    now_ms = clock.now_ms()
    return await resolve(store, configured, providers, now_ms, named=settings.classes, process=process)


def served_version(states: Mapping[str, ClassState], class_id: str) -> ClassVersion:
    """The version of the class that a command names. ValueError if no such class is served."""
    if class_id not in states:
        raise ValueError(f"there is no class '{class_id}'; {suggest(class_id, states)}")
    return states[class_id].version


def known_cost(settings: Settings, routes: Iterable[Route]) -> Price | None:
    """What a token costs at the dearest of these routes; None if that of one is not known."""
    costs = [_cost(settings, route) for route in routes]
    known = [one for one in costs if one is not None]
    return max(known, key=lambda one: (one.output_nano, one.input_nano)) if len(known) == len(costs) else None


def provider_costs(settings: Settings, routes: Iterable[Route]) -> dict[tuple[str, str], Price]:
    """What a token costs, by provider and model, where it is known."""
    found = {(route.provider, route.model): _cost(settings, route) for route in routes}
    return {place: cost for place, cost in found.items() if cost is not None}


def _cost(settings: Settings, route: Route) -> Price | None:
    """A model on this machine costs nothing."""
    is_local = kind_of(settings.providers[route.provider].kind).is_local
    return Price(0, 0) if is_local else settings.costs.get(route.name)


def class_rules(settings: Settings, class_id: str) -> ClassRules:
    """What the config says about a class; one that only the store has is not pinned."""
    one = _class_settings(settings, class_id)
    pin = f"{settings.source}, line {one.pinned_at}" if one.pinned_at else ""
    return ClassRules(pin=pin, gate=one.gate, suite=one.gate.suite, providers=settings.retention_of_providers())


def find_candidate(settings: Settings, class_id: str, text: str) -> Route:
    """The route that `--candidate PROVIDER/MODEL` names. ValueError with what to do if there is none.

    Its settings are those of a candidate of the class, else of a route or a candidate of any class, else the defaults.
    """
    name, _, model = text.partition("/")
    provider = settings.providers.get(name)
    if provider is None:
        raise ValueError(f"--candidate {text}: no provider is named '{name}'; {suggest(name, settings.providers)}")
    own = _class_settings(settings, class_id).candidates
    others = [route for one in settings.classes.values() for route in (*one.routes, *one.candidates)]
    known = [route for route in (*own, *others) if route.provider == name]
    default = make_route(provider, CandidateSettings(name))
    if default.model and model not in ("", default.model):
        raise ValueError(f"--candidate {text}: the provider '{name}' has one model: use '{name}/{default.model}'")
    if not (model or default.model):
        names = ", ".join(dict.fromkeys(route.name for route in known))
        raise ValueError(
            f"--candidate {text}: name a model too, PROVIDER/MODEL; the config has {names or 'none there'}"
        )
    wanted = model or default.model
    found = next((route for route in known if route.model == wanted), None)
    return found or make_route(provider, CandidateSettings(name, wanted))


def _class_settings(settings: Settings, class_id: str) -> ClassSettings:
    """Of a class that only the store has: the defaults, which pin nothing."""
    return settings.classes.get(class_id) or ClassSettings()
