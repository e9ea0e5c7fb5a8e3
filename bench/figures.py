"""The records that measurements fill and the report reads; `results.json` is `Results` as JSON."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of request cost the gateway. `cpu_us` is None if none was served; `error` says why."""

    cpu_us: float | None
    served: int
    per_s: float
    core_share: float  # of the gateway's core; well below 1, the load generator was the bottleneck
    error: str | None = None
    rounds_us: Sequence[float] = ()  # `cpu_us` of each round; it is their median

    @classmethod
    def median(cls, rounds: Sequence[Self]) -> Self:
        measured_us = [one.cpu_us for one in rounds if one.cpu_us is not None]
        return cls(
            cpu_us=_median(measured_us),
            served=sum(one.served for one in rounds),
            per_s=statistics.median(one.per_s for one in rounds),
            core_share=statistics.median(one.core_share for one in rounds),
            error=_first_error(rounds),
            rounds_us=measured_us,
        )


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token and between chunks at one concurrency."""

    at_once: int
    first_p50_ms: float
    first_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    error: str | None = None

    @classmethod
    def median(cls, rounds: Sequence[Self]) -> Self:
        times_ms = {name: statistics.median(getattr(one, name) for one in rounds) for name in TIMES}
        return cls(at_once=rounds[0].at_once, error=_first_error(rounds), **times_ms)

    def minus(self, direct: "Timing") -> "Timing":
        """The latency a gateway adds: the difference of the percentiles."""
        return msgspec.structs.replace(self, **{name: getattr(self, name) - getattr(direct, name) for name in TIMES})


TIMES = ("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")


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

    @classmethod
    def median(cls, rounds: Sequence[Self]) -> Self:
        """The medians of several rounds. A round that failed is left out, unless all have."""
        good = [one for one in rounds if not one.failure]
        if not good:
            return rounds[0]
        costs = {
            name: Cost.median([cost for one in good if (cost := getattr(one, name))])
            for name in ("plain", "burst", "spaced")
        }
        sizes = ("cold_start_s", "rss_idle_mb", "rss_load_mb", "rss_after_mb")
        medians = {name: _median(getattr(one, name) for one in good) for name in sizes}
        added = [Timing.median(timings) for timings in zip(*(one.added for one in good), strict=True)]
        return msgspec.structs.replace(good[0], added=added, **costs, **medians)

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
    """A table. If it is about growth, `axis` names the quantity that grows."""

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
    beside: list[Section] = []  # about several gateways or accounts; the terminal shows them too

    def find(self, name: str) -> GatewayFigures | None:
        return next((one for one in self.gateways if one.name == name and not one.failure), None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _first_error(rounds: Sequence[Cost] | Sequence[Timing]) -> str | None:
    return next((one.error for one in rounds if one.error), None)
