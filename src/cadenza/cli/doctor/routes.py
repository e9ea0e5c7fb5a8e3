"""What `cadenza doctor` checks of providers and routes.

A running service says what is wrong with its chats. A route is judged by whether its provider lists the model; but a
provider may list its models and refuse every chat. With --try the model is also asked for
one token.
"""

import asyncio
from collections.abc import Callable, Mapping

from cadenza.cli.doctor.installation import ask_store, check_installation, has_other_store
from cadenza.cli.doctor.kept_rows import check_retention, describe_retention
from cadenza.cli.running_service import NoAnswer, NotRunning, address_of, read_service
from cadenza.clock import now_ms
from cadenza.config import Settings
from cadenza.config.build import build_upstreams
from cadenza.control.class_versions import (
    is_decided_by_store,
    read_served,
    require_providers,
    require_routes,
    unrecorded,
)
from cadenza.core.attempts import TRIAL, AttemptCounts
from cadenza.core.classes import ClassState
from cadenza.core.config_keys import suggest
from cadenza.core.errors import ControlError
from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.observe import make_log
from cadenza.observe.facts import read_routes
from cadenza.observe.problem import Severity
from cadenza.observe.samples import Samples
from cadenza.store.tables.attempts import add as add_attempts
from cadenza.terminal.checks import Check, State
from cadenza.upstreams.base import Probe
from cadenza.upstreams.billed import BilledUpstream
from cadenza.upstreams.one_token import ask_one_token

STATES: dict[Severity, State] = {"page": "fault", "ticket": "warning"}
MODELS_NAMED_MAX = 5


class TrialCheck(Check, frozen=True, kw_only=True):
    """Whether a model answers."""

    provider: str
    model: str

    @property
    def heading(self) -> str:
        return f"{self.provider}: {self.model}"


async def examine(settings: Settings) -> list[Check]:
    """All checks that send no chat."""
    checks = [*await check_installation(settings), await check_retention(settings)]
    for name, provider in settings.providers.items():
        checks.append(Check("retention", "ok", f"{name}: {describe_retention(provider)}"))
    found, rejecting = await ask_service(settings)
    checks += found
    classes, problems = await read_classes(settings)
    checks += problems
    for name, upstream in build_upstreams(settings, make_log(), served_routes(classes)).items():
        try:
            probe = await upstream.probe()
        finally:
            await upstream.stop()
        for class_id, state in classes.items():
            checks += [
                _check_route(f"{class_id} -> {name}: {it.model}", it.model, probe, rejects_key=name in rejecting)
                for it in state.version.routes
                if it.provider == name
            ]
    return checks


async def read_classes(settings: Settings) -> tuple[dict[str, ClassState], list[Check]]:
    """What is served, or what a start would serve, and a check of each class for which the config is not all.

    Without a usable store, which has a check of its own, it is what the config says.
    """
    configured, checks = settings.configured_classes(), list[Check]()
    classes = await ask_store(settings, lambda store: read_served(store, configured))
    if classes is None:
        return unrecorded(configured), []
    for class_id in settings.classes:
        try:
            require_routes(class_id, classes)
        except ControlError as error:
            checks.append(Check("class", "fault", error.message))
    for class_id, state in list(classes.items()):
        given = configured.get(class_id)
        try:
            require_providers(state.version, settings.retention_of_providers())
        except ControlError as error:
            checks.append(Check("class", "fault", error.message))
            del classes[class_id]
            continue
        if state.version.number and given and is_decided_by_store(state, given):
            number, line = state.version.number, settings.classes[class_id].pinned_at
            unused = f"the routes in line {line} of the config are not used" if line else "it was promoted"
            checks.append(Check("class", "ok", f"{class_id}: version {number} of the store is served; {unused}"))
    return classes, checks


def served_routes(classes: Mapping[str, ClassState]) -> list[Route]:
    return [route for state in classes.values() for route in state.version.routes]


async def ask_service(settings: Settings) -> tuple[list[Check], set[str]]:
    """Whether the service of this config runs, what it says is wrong, and the providers that reject their keys."""
    server, url, why = settings.server, address_of(settings.server), ""
    try:
        families, problems, process = await asyncio.to_thread(read_service, url, server.metrics_token)
    except NotRunning:
        return [Check("service", "ok", f"not running at {url}, the address of the config")], set()
    except NoAnswer as reason:
        families, problems, process, why = [], [], reason.process, f"{url}: {reason}"
    if await has_other_store(settings, process):
        todo = (
            "Keys and accounts that commands make here are unknown there. Give both the same config and folder; or set "
            "port in [server], if the service of this config was started with --port."
        )
        return [Check("service", "warning", f"what answers at {url} has another store than this config", todo)], set()
    if why:
        todo = "Check that it is the service of this config: what is wrong with it is not known."
        return [Check("service", "warning", why, todo)], set()
    found = [Check("problem", STATES[one.severity], one.words, one.advice) for one in problems]
    broken = [one for one in read_routes(Samples(families)) if one.is_broken]
    rejecting = {one.provider for one in broken if one.fault == FaultKind.UNAUTHORIZED.value}
    return [Check("service", "ok", f"running at {url}"), *found], rejecting


def _check_route(name: str, model: str, probe: Probe, *, rejects_key: bool) -> Check:
    if not probe.reachable:
        return Check("route", "fault", f"{name}: {probe.detail}", probe.advice)
    if rejects_key:
        return Check("route", "fault", f"{name}: the provider lists its models, but rejects the key in chats")
    if probe.models and model not in probe.models:
        known = ", ".join(probe.models[:MODELS_NAMED_MAX])
        return Check("route", "warning", f"{name}: the provider does not list this model", f"It lists {known}.")
    return Check("route", "ok", f"{name}: {probe.detail}")


async def try_models(
    settings: Settings, provider: str | None, limit_s: float, announce: Callable[[str], None]
) -> list[TrialCheck]:
    """Ask the models of one provider, or of all, for one token. The first route with a model stands for the others."""
    routes = dict[tuple[str, str], Route]()
    classes, _ = await read_classes(settings)
    for route in served_routes(classes):
        routes.setdefault((route.provider, route.model), route)
    used = {route.provider: None for route in routes.values()}
    if provider is not None and provider not in used:
        raise ValueError(f"no route uses a provider named '{provider}'; {suggest(provider, used)}")
    wanted = [route for route in routes.values() if provider in (None, route.provider)]
    checks, attempts = list[TrialCheck](), AttemptCounts(now_ms)
    for route in wanted:
        announce(f"Asking {route.provider}: {route.model} for one token …")
        upstream = build_upstreams(settings, make_log(), wanted)[route.provider]
        await upstream.start()
        try:
            fault = await ask_one_token(BilledUpstream(upstream, attempts, TRIAL), route, limit_s)
        finally:
            await upstream.stop()
        words = (fault.words, fault.kind.advice) if fault else ("answers", "")
        state: State = "fault" if fault else "ok"
        checks.append(TrialCheck("chat", state, *words, provider=route.provider, model=route.model))
    await ask_store(settings, lambda store: add_attempts(store, attempts.take()))  # providers bill the trials
    return checks
