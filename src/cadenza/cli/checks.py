"""The checks of `cadenza doctor`: secrets, store, shared state, region, metrics, retention, and each route.

With --deep the model of every route is also sent some tiny requests, once for each provider and model.
"""

import asyncio
from collections.abc import Callable

from cadenza.app import build_upstreams
from cadenza.cli.check import Check, TrialCheck
from cadenza.cli.search_check import check_search
from cadenza.cli.shared_check import check_shared_state
from cadenza.cli.store_check import check_store
from cadenza.config import Server, Settings, missing_secrets
from cadenza.config.checks import suggest
from cadenza.core.records import Route
from cadenza.http.forwarded import is_local
from cadenza.observe import make_log
from cadenza.upstreams.base import Probe, Upstream
from cadenza.upstreams.trial.findings import Finding
from cadenza.upstreams.trial.session import TrialLimits
from cadenza.upstreams.trial.trial import try_model, try_plain_reply

RETENTION_SWITCHES = {"openai": "; each request says store: false", "openrouter": "; each request says zdr and deny"}
MODELS_NAMED_MAX = 5


def examine(settings: Settings) -> list[Check]:
    return asyncio.run(_examine(settings))


async def _examine(settings: Settings) -> list[Check]:
    source = str(settings.source) if settings.source else "the built-in embedded default"
    checks = [Check("config", "ok", source)]
    checks += [Check("secrets", "fault", missing, "Set it, then start again.") for missing in missing_secrets(settings)]
    checks.append(await check_store(settings.store.url))
    checks.append(await check_shared_state(settings.shared_state.url))
    checks.append(Check("region", "ok", f"account data and counters are stored in '{settings.store.region}'"))
    checks.append(check_metrics(settings.server))
    checks.append(await check_search(settings))
    checks += [_check_retention(name, provider.dialect) for name, provider in settings.providers.items()]
    for name, upstream in build_upstreams(settings, make_log()).items():
        checks += _check_routes(settings, name, await _probe(upstream))
    return checks


def check_metrics(server: Server) -> Check:
    """A token protects /metrics. Without one it is open to this machine, and so to a proxy here that adds no header."""
    if server.metrics_token_env:
        return Check("metrics", "ok", f"open with the token in {server.metrics_token_env}")
    if is_local(server.host, []):
        return Check("metrics", "ok", "open to programs on this machine")
    todo = "Set metrics_token_env in [server]: behind a proxy on this machine, anyone may pass for a local program."
    return Check("metrics", "warning", f"the service listens on {server.host}, and /metrics has no token", todo)


def _check_retention(name: str, dialect: str) -> Check:
    return Check("retention", "ok", f"{name}: zero, as configured{RETENTION_SWITCHES.get(dialect, '')}")


async def _probe(upstream: Upstream) -> Probe:
    try:
        return await upstream.probe()
    finally:
        await upstream.stop()


def _check_routes(settings: Settings, provider: str, probe: Probe) -> list[Check]:
    return [
        _check_route(f"{class_id} -> {provider}: {route.model}", route.model, probe)
        for class_id, one in settings.classes.items()
        for route in one.routes
        if route.provider == provider
    ]


def _check_route(name: str, model: str, probe: Probe) -> Check:
    if not probe.reachable:
        todo = "Check base_url, the key in the environment, and that the endpoint is up."
        return Check("route", "fault", f"{name}: {probe.detail}", todo)
    if probe.models and model not in probe.models:
        known = ", ".join(probe.models[:MODELS_NAMED_MAX])
        return Check("route", "warning", f"{name}: the provider does not list this model", f"It lists {known}.")
    return Check("route", "ok", f"{name}: {probe.detail}")


def try_models(
    settings: Settings, provider: str | None, limits: TrialLimits, announce: Callable[[str], None]
) -> list[TrialCheck]:
    """Try the models of one provider, or of all. The first route with a model stands for the others."""
    routes = dict[tuple[str, str], Route]()
    for one in settings.classes.values():
        for route in one.routes:
            routes.setdefault((route.provider, route.model), route)
    used = {route.provider: None for route in routes.values()}
    if provider is not None and provider not in used:
        raise ValueError(f"no route uses a provider named '{provider}'; {suggest(provider, used)}")
    wanted = [route for route in routes.values() if provider in (None, route.provider)]
    return asyncio.run(_try_models(settings, wanted, limits, announce))


async def _try_models(
    settings: Settings, routes: list[Route], limits: TrialLimits, announce: Callable[[str], None]
) -> list[TrialCheck]:
    checks = []
    for route in routes:
        announce(f"Trying {route.provider}: {route.model} with tiny requests, one at a time …")
        upstream = build_upstreams(settings, make_log())[route.provider]
        await upstream.start()
        try:
            checks += await _try_route(settings, upstream, route, limits)
        finally:
            await upstream.stop()
    return checks


async def _try_route(settings: Settings, upstream: Upstream, route: Route, limits: TrialLimits) -> list[TrialCheck]:
    """The embedded model is only asked whether it answers: what it is sent is ours to decide."""
    given = settings.providers[route.provider]
    if given.kind == "embedded":
        findings = await try_plain_reply(upstream, "llamacpp", route, limits)
    else:
        findings = await try_model(upstream, given.dialect, route, limits)
    return [
        TrialCheck(it.tried, it.state, it.found, _todo(it, given.name), provider=given.name, model=route.model)
        for it in findings
    ]


def _todo(finding: Finding, provider: str) -> str:
    """The line for the config, on a line of its own so that it can be copied, or advice, or both."""
    place = f"[providers.{provider}]" if finding.setting.startswith("dialect = ") else "the route"
    setting = f"Set in {place}:\n{finding.setting}" if finding.setting else ""
    return "\n".join(filter(None, (setting, finding.advice)))
