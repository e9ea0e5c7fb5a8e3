"""The records that measurements fill and the report reads; `results.json` is these, encoded."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of request cost the gateway. No figure where none was served; the complaint says why."""

    cpu_us: float | None
    served: int
    per_s: float
    core_share: float  # of the gateway's core; well below 1 it was the load that could not do more
    complaint: str | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token and between chunks at one concurrency."""

    at_once: int
    first_p50_ms: float
    first_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    complaint: str | None = None

    def over(self, direct: "Timing") -> "Timing":
        """What a gateway added: the difference of the percentiles."""
        return Timing(
            at_once=self.at_once,
            first_p50_ms=self.first_p50_ms - direct.first_p50_ms,
            first_p99_ms=self.first_p99_ms - direct.first_p99_ms,
            gap_p50_ms=self.gap_p50_ms - direct.gap_p50_ms,
            gap_p99_ms=self.gap_p99_ms - direct.gap_p99_ms,
            complaint=self.complaint,
        )


class GatewayFigures(msgspec.Struct, kw_only=True):
    """One gateway: its figures, or why there are none."""

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
        return next((timing for timing in self.added if timing.at_once == at_once and not timing.complaint), None)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table of Cadenza's own: what was tried, its size where that is what grows, and what it cost.

    Figures are named with their units last; the first is the one that is plotted.
    """

    subject: str
    figures: Mapping[str, float]
    size: float | None = None
    complaint: str | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of Cadenza's own. The axis says what grows, where the table is about growth."""

    title: str
    note: str
    lines: Sequence[Line]
    axis: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """All of one run."""

    date: str
    is_quick: bool
    machine: Mapping[str, Any]
    versions: dict[str, str]
    direct: list[Timing] = []
    gateways: list[GatewayFigures] = []
    sections: list[Section] = []

    def find(self, name: str) -> GatewayFigures | None:
        return next((one for one in self.gateways if one.name == name and not one.failure), None)
