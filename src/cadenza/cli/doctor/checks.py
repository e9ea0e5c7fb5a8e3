"""The checks of `cadenza doctor`: secrets, store, shared state, region, metrics, retention, and each route.

A route is judged by how it answers the chats of the running service, and by whether its provider lists the model. With
--try the model is also asked for one token, with --deep it is sent some tiny requests, once for each model.
"""

import asyncio
from collections.abc import Callable

from cadenza.app import build_upstreams
from cadenza.cli.doctor.check import Check, TrialCheck
from cadenza.cli.doctor.search_check import check_search
from cadenza.cli.doctor.service_check import LiveFault, LiveRoutes, ask_service
from cadenza.cli.doctor.shared_check import check_shared_state
from cadenza.cli.doctor.store_check import check_store
from cadenza.config import Settings, missing_secrets
from cadenza.config.checks import suggest
from cadenza.config.load import SECRET_KEY_ENV
from cadenza.config.settings import ServerSettings
from cadenza.core.records import Route
from cadenza.http.headers import is_local
from cadenza.observe import make_log
from cadenza.upstreams.base import Probe, Upstream
from cadenza.upstreams.trial.session import TrialFinding, TrialLimits
from cadenza.upstreams.trial.trial import try_model, try_one_token, try_plain_reply

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
    checks.append(check_region(settings.store.region))
    checks.append(check_site_key(settings))
    checks.append(check_metrics(settings.server))
    checks.append(await check_search(settings))
    checks += [_check_retention(name, provider.dialect) for name, provider in settings.providers.items()]
    live = await ask_service(settings.server)
    checks.append(live.check)
    for name, upstream in build_upstreams(settings, make_log()).items():
        checks += _check_routes(settings, name, await _probe(upstream), live)
    return checks


def check_region(region: str | None) -> Check:
    if region is None:
        return Check(
            "region", "ok", "not stated. To show where account data and counters are stored, set [store] region."
        )
    return Check("region", "ok", f"account data and counters are stored in '{region}', as the config says")


def check_site_key(settings: Settings) -> Check:
    """The key that encrypts the secrets of authenticator apps. Beside SQLite, the service makes one."""
    if settings.platform.secret_key:
        return Check("site key", "ok", "from the environment")
    if settings.store.url.startswith("sqlite:"):
        return Check("site key", "ok", "in a file beside the store, which the first authenticator app creates")
    todo = (
        f"Set {settings.platform.secret_key_env or SECRET_KEY_ENV} to 32 random characters or more, on every machine."
    )
    return Check("site key", "warning", "not set: the secrets of authenticator apps are stored unencrypted", todo)


def check_metrics(server: ServerSettings) -> Check:
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


def _check_routes(settings: Settings, provider: str, probe: Probe, live: LiveRoutes) -> list[Check]:
    return [
        _check_route(
            f"{class_id} -> {provider}: {route.model}", route.model, probe, live.faults.get((provider, route.model))
        )
        for class_id, one in settings.classes.items()
        for route in one.routes
        if route.provider == provider
    ]


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


def try_models(
    settings: Settings, provider: str | None, limits: TrialLimits, announce: Callable[[str], None], *, is_deep: bool
) -> list[TrialCheck]:
    """Try the models of one provider, or of all. The first route with a model stands for the others.

    A model is asked for one token, or sent every kind of request if the trial is deep.
    """
    routes = dict[tuple[str, str], Route]()
    for one in settings.classes.values():
        for route in one.routes:
            routes.setdefault((route.provider, route.model), route)
    used = {route.provider: None for route in routes.values()}
    if provider is not None and provider not in used:
        raise ValueError(f"no route uses a provider named '{provider}'; {suggest(provider, used)}")
    wanted = [route for route in routes.values() if provider in (None, route.provider)]
    return asyncio.run(_try_models(settings, wanted, limits, announce, is_deep=is_deep))


async def _try_models(
    settings: Settings, routes: list[Route], limits: TrialLimits, announce: Callable[[str], None], *, is_deep: bool
) -> list[TrialCheck]:
    checks = []
    for route in routes:
        what = "with tiny requests, one at a time" if is_deep else "with a request for one token"
        announce(f"Trying {route.provider}: {route.model} {what} …")
        upstream = build_upstreams(settings, make_log())[route.provider]
        await upstream.start()
        try:
            checks += await _try_route(settings, upstream, route, limits, is_deep=is_deep)
        finally:
            await upstream.stop()
    return checks


async def _try_route(
    settings: Settings, upstream: Upstream, route: Route, limits: TrialLimits, *, is_deep: bool
) -> list[TrialCheck]:
    """The embedded model is only asked whether it answers: what it is sent is ours to decide."""
    given = settings.providers[route.provider]
    dialect = "llamacpp" if given.kind == "embedded" else given.dialect
    if not is_deep:
        findings = [await try_one_token(upstream, route, limits)]
    elif given.kind == "embedded":
        findings = await try_plain_reply(upstream, dialect, route, limits)
    else:
        findings = await try_model(upstream, dialect, route, limits)
    return [
        TrialCheck(it.tried, it.state, it.found, _todo(it, given.name), provider=given.name, model=route.model)
        for it in findings
    ]


def _todo(finding: TrialFinding, provider: str) -> str:
    """The line for the config, on a line of its own so that it can be copied, or advice, or both."""
    place = f"[providers.{provider}]" if finding.setting.startswith("dialect = ") else "the route"
    setting = f"Set in {place}:\n{finding.setting}" if finding.setting else ""
    return "\n".join(filter(None, (setting, finding.advice)))
