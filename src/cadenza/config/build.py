"""What is built from the settings alone: for the service, and for commands that need nothing else of it."""

from collections.abc import Callable, Iterable

import msgspec

from cadenza.config.kinds import OF_PARTS, kind_of
from cadenza.config.settings import ProviderSettings, Settings
from cadenza.core.records import Route
from cadenza.observe import Log
from cadenza.upstreams.base import Upstream
from cadenza.upstreams.dialects import DIALECTS
from cadenza.upstreams.openai import OpenAIUpstream


class UpstreamSpec(msgspec.Struct, frozen=True):
    """What an upstream is built from: one that keeps its spec keeps running. Only a local model has a window."""

    provider: ProviderSettings
    context_tokens: int


BuildUpstream = Callable[[UpstreamSpec, Log], Upstream]  # of a kind that belongs to a part


def build_upstreams(settings: Settings, log: Log, routes: Iterable[Route]) -> dict[str, Upstream]:
    """One upstream per provider that a route names."""
    return {name: build_upstream(spec, log) for name, spec in upstream_specs(settings, routes).items()}


def upstream_specs(settings: Settings, routes: Iterable[Route]) -> dict[str, UpstreamSpec]:
    """One per provider. A local model gets the largest context window that a route wants of it."""
    windows: dict[str, int] = {}
    for route in routes:
        is_local = kind_of(settings.providers[route.provider].kind).is_local
        windows[route.provider] = max(windows.get(route.provider, 0), route.context_tokens if is_local else 0)
    return {name: UpstreamSpec(settings.providers[name], window) for name, window in windows.items()}


def build_upstream(spec: UpstreamSpec, log: Log) -> Upstream:
    provider = spec.provider
    if part := OF_PARTS.get(provider.kind):
        build: BuildUpstream = part.load("open").build_upstream
        return build(spec, log)
    assert provider.base_url
    dialect = DIALECTS[provider.dialect]
    return OpenAIUpstream(
        provider.base_url, provider.api_key, dialect, provider.proxy, provider.api_version, provider.authorities
    )
