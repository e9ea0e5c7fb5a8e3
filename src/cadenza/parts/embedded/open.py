"""Builds the upstream of a provider of this kind."""

from cadenza.config.build import BuildUpstream, UpstreamSpec
from cadenza.observe import Log
from cadenza.parts.embedded.upstream import EmbeddedUpstream
from cadenza.upstreams.base import Upstream


def build_embedded(spec: UpstreamSpec, log: Log) -> Upstream:
    return EmbeddedUpstream(log, spec.context_tokens, spec.provider.model_path)


build_upstream: BuildUpstream = build_embedded
