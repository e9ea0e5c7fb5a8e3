"""The records that measurements fill and the report reads; `results.json` is `Results` as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of request cost the gateway. `cpu_us` is None if none was served; `error` says why."""

    cpu_us: float | None
    served: int
    per_s: float
    core_share: float  # of the gateway's core; well below 1, the load generator was the bottleneck
    error: str | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token and between chunks at one concurrency."""

    at_once: int
    first_p50_ms: float
    first_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    error: str | None = None

    def minus(self, direct: "Timing") -> "Timing":
        """The latency a gateway adds: the difference of the percentiles."""
        return Timing(
            at_once=self.at_once,
            first_p50_ms=self.first_p50_ms - direct.first_p50_ms,
            first_p99_ms=self.first_p99_ms - direct.first_p99_ms,
            gap_p50_ms=self.gap_p50_ms - direct.gap_p50_ms,
            gap_p99_ms=self.gap_p99_ms - direct.gap_p99_ms,
            error=self.error,
        )


class GatewayFigures(msgspec.Struct, kw_only=True):
    """The figures of one gateway, or the reason there are none."""

    name: str
    version: str = ""
    failure: str | None = None
    cold_start_s: float | None = None
    rss_idle_mb: float | None = None
    rss_load_mb: float | None = None
    rss_after_mb: float | None = None
    plain: Cost | None = None
    burst: Cost | None = None
    spaced: Cost | None = None
    added: list[Timing] = []

    def added_at(self, at_once: int) -> Timing | None:
        return next((timing for timing in self.added if timing.at_once == at_once and not timing.error), None)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a section: the subject, its size if the section is about growth, and its figures.

    The names of figures end with their unit. The first figure is the one that is plotted.
    """

    subject: str
    figures: Mapping[str, float]
    size: float | None = None
    error: str | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table about Cadenza alone. If it is about growth, `axis` names the quantity that grows."""

    title: str
    note: str
    lines: Sequence[Line]
    axis: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """Everything one run measured."""

    date: str
    is_quick: bool
    machine: Mapping[str, Any]
    versions: dict[str, str]
    direct: list[Timing] = []
    gateways: list[GatewayFigures] = []
    sections: list[Section] = []

    def find(self, name: str) -> GatewayFigures | None:
        return next((one for one in self.gateways if one.name == name and not one.failure), None)
