"""What `cadenza doctor` checks of providers and routes.

A route is judged by how it answers the chats of the running service, which its metrics tell, and by whether its
provider lists the model: a provider may list its models and refuse every chat. With --try the model is also asked for
one token, with --deep it is sent some tiny requests, once for each model.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from cadenza.app import build_upstreams
from cadenza.cli.doctor.installation import Check, check_installation
from cadenza.cli.doctor.retention import check_retention, describe_retention
from cadenza.config import Settings
from cadenza.config.checks import suggest
from cadenza.config.settings import ServerSettings
from cadenza.control.class_versions import (
    is_decided_by_store,
    read_served,
    require_providers,
    require_routes,
    unrecorded,
)
from cadenza.control.store.prepare import require_store
from cadenza.core.attempts import TRIAL, AttemptCounts
from cadenza.core.classes import ClassState
from cadenza.core.errors import ControlError
from cadenza.core.records import Route
from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import Broken, read_body
from cadenza.observe import make_log, now_ms
from cadenza.store.address import open_store
from cadenza.store.store import StoreRefused, StoreUnavailable
from cadenza.store.tables.attempts import add as add_attempts
from cadenza.upstreams.base import Fault, FaultKind, Probe, Upstream
from cadenza.upstreams.billed import BilledUpstream
from cadenza.upstreams.trial.session import TrialFinding, fault_advice
from cadenza.upstreams.trial.trial import try_model, try_one_token, try_plain_reply

ANSWER_S = 3.0
BYTES_MAX = 16 * 1024 * 1024
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 where a service that listens everywhere is asked
FAILING = "cadenza_route_failing"
LAST_FAULT = "cadenza_route_last_fault_timestamp_seconds"

Place = tuple[str, str]  # provider and model
MODELS_NAMED_MAX = 5


class TrialCheck(Check, frozen=True, kw_only=True):
    """One finding of a trial."""

    provider: str
    model: str

    @property
    def heading(self) -> str:
        return f"{self.provider}: {self.model}"


class LiveFault(msgspec.Struct, frozen=True):
    """The last fault of a route, and whether its requests still fail."""

    kind: str
    status: int | None
    ago_s: float
    is_failing: bool

    @property
    def words(self) -> str:
        status = f" ({self.status})" if self.status else ""
        return f"{self.kind}{status}, {_span(self.ago_s)} ago"

    @property
    def advice(self) -> str:
        kind = next((one for one in FaultKind if one.value == self.kind), FaultKind.FAILED)
        return fault_advice(Fault(kind, self.status)) or "Read the `upstream fault` lines of the log."


async def examine(settings: Settings) -> list[Check]:
    """All checks that send no chat."""
    checks = [*await check_installation(settings), await check_retention(settings)]
    for name, provider in settings.providers.items():
        checks.append(Check("retention", "ok", f"{name}: {describe_retention(provider)}"))
    service, faults = await ask_service(settings.server)
    checks.append(service)
    classes, problems = await read_classes(settings)
    checks += problems
    for name, upstream in build_upstreams(settings, make_log(), served_routes(classes)).items():
        try:
            probe = await upstream.probe()
        finally:
            await upstream.stop()
        for class_id, state in classes.items():
            for version in state.versions:
                label = f"{class_id} (candidate)" if version is state.candidate else class_id
                checks += [
                    _check_route(f"{label} -> {name}: {it.model}", it.model, probe, faults.get((name, it.model)))
                    for it in version.routes
                    if it.provider == name
                ]
    return checks


async def read_classes(settings: Settings) -> tuple[dict[str, ClassState], list[Check]]:
    """What is served, or what a start would serve, and a check of each class for which the config is not all.

    Without a usable store, which has a check of its own, it is what the config says.
    """
    configured, checks = settings.configured_classes(), list[Check]()
    store = open_store(settings.store.url)
    try:
        await require_store(store)
        classes = await read_served(store, configured)
    except StoreUnavailable:
        return unrecorded(configured), []
    finally:
        await store.close()
    for class_id in settings.classes:
        try:
            require_routes(class_id, classes)
        except ControlError as error:
            checks.append(Check("class", "fault", error.message))
    for class_id, state in list(classes.items()):
        given = configured.get(class_id)
        try:
            require_providers(state, settings.retention_of_providers())
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
    return [route for state in classes.values() for version in state.versions for route in version.routes]


async def ask_service(server: ServerSettings) -> tuple[Check, dict[Place, LiveFault]]:
    """What the running service says: one check for the service, and the last fault of each route that had one."""
    host = ANY_ADDRESS.get(server.host) or (f"[{server.host}]" if ":" in server.host else server.host)
    address = f"{host}:{server.port}"
    headers = {"authorization": f"Bearer {server.metrics_token}"} if server.metrics_token else {}
    client = HttpClient(f"http://{address}", headers)
    try:
        async with asyncio.timeout(ANSWER_S), client.request("GET", "/metrics", b"", ANSWER_S) as response:
            body = await read_body(response, asyncio.get_running_loop().time() + ANSWER_S, BYTES_MAX)
            status = response.status
    except (Unreachable, OutOfResources):
        return Check("service", "ok", f"not running at {address}, the address of the config"), {}
    except (TimeoutError, Broken):
        return _unclear(address, "does not answer"), {}
    finally:
        await client.close()
    if status != 200:
        return _unclear(address, f"answers {status} to GET /metrics"), {}
    return Check("service", "ok", f"running at {address}"), read_faults(body.decode(errors="replace"), time.time())


def read_faults(text: str, now_s: float) -> dict[Place, LiveFault]:
    """The last fault of each route. Several worker processes may have seen one: the latest counts."""
    failing, latest = set[Place](), dict[Place, tuple[float, str, str]]()
    with contextlib.suppress(ValueError):  # another program is at this address
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                place = (sample.labels.get("provider", ""), sample.labels.get("model", ""))
                if sample.name == FAILING and sample.value:
                    failing.add(place)
                elif sample.name == LAST_FAULT:
                    seen = (sample.value, sample.labels["kind"], sample.labels["status"])
                    latest[place] = max(latest.get(place, seen), seen)
    return {
        place: LiveFault(kind, int(status) if status else None, max(0.0, now_s - at_s), is_failing=place in failing)
        for place, (at_s, kind, status) in latest.items()
    }


def _unclear(address: str, what: str) -> Check:
    todo = "Check that it is the service of this config, and its metrics token: its routes could not be asked about."
    return Check("service", "warning", f"{address} {what}", todo)


def _span(seconds: float) -> str:
    for unit, size_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _check_route(name: str, model: str, probe: Probe, last_fault: LiveFault | None) -> Check:
    if last_fault and last_fault.is_failing:
        return Check("route", "fault", f"{name}: chats fail: {last_fault.words}", last_fault.advice)
    if not probe.reachable:
        todo = "Check base_url, the key in the environment, and that the endpoint is up."
        return Check("route", "fault", f"{name}: {probe.detail}", todo)
    if probe.models and model not in probe.models:
        known = ", ".join(probe.models[:MODELS_NAMED_MAX])
        return Check("route", "warning", f"{name}: the provider does not list this model", f"It lists {known}.")
    earlier = f"; the last fault was {last_fault.words}" if last_fault else ""
    return Check("route", "ok", f"{name}: {probe.detail}{earlier}")


async def try_models(
    settings: Settings, provider: str | None, limit_s: float, announce: Callable[[str], None], *, is_deep: bool
) -> list[TrialCheck]:
    """Try the models of one provider, or of all. The first route with a model stands for the others.

    A model is asked for one token, or sent every kind of request if the trial is deep.
    """
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
        what = "with tiny requests, one at a time" if is_deep else "with a request for one token"
        announce(f"Trying {route.provider}: {route.model} {what} …")
        upstream = build_upstreams(settings, make_log(), wanted)[route.provider]
        await upstream.start()
        try:
            counted = BilledUpstream(upstream, attempts, TRIAL)
            checks += await _try_route(settings, counted, route, limit_s, is_deep=is_deep)
        finally:
            await upstream.stop()
    await _keep_attempts(settings, attempts)
    return checks


async def _keep_attempts(settings: Settings, attempts: AttemptCounts) -> None:
    """Providers bill the trials. Without a usable store, which has a check of its own, they are not counted."""
    store = open_store(settings.store.url)
    try:
        await require_store(store)
        await add_attempts(store, attempts.take())
    except (StoreUnavailable, StoreRefused):
        pass
    finally:
        await store.close()


async def _try_route(
    settings: Settings, upstream: Upstream, route: Route, limit_s: float, *, is_deep: bool
) -> list[TrialCheck]:
    """The embedded model is only asked whether it answers: what it is sent is ours to decide."""
    given = settings.providers[route.provider]
    dialect = "llamacpp" if given.kind == "embedded" else given.dialect
    if not is_deep:
        findings = [await try_one_token(upstream, route, limit_s)]
    elif given.kind == "embedded":
        findings = await try_plain_reply(upstream, dialect, route, limit_s)
    else:
        findings = await try_model(upstream, dialect, route, limit_s)
    return [
        TrialCheck(it.tried, it.state, it.found, _todo(it, given.name), provider=given.name, model=route.model)
        for it in findings
    ]


def _todo(finding: TrialFinding, provider: str) -> str:
    """The line for the config, on a line of its own so that it can be copied, or advice, or both."""
    place = f"[providers.{provider}]" if finding.setting.startswith("dialect = ") else "the route"
    setting = f"Set in {place}:\n{finding.setting}" if finding.setting else ""
    return "\n".join(filter(None, (setting, finding.advice)))
