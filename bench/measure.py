"""Measure one gateway: cold start, plain requests, streams, latency and memory.

The cost of a request is the user and system time of the gateway's process tree divided by the requests it served.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench import wrk
from bench.figures import Cost, GatewayFigures, Line, Timing
from bench.gateways.base import Gateway, Running, running
from bench.gateways.install import debian_program
from bench.load import Load, LoadResult, drive, drive_watched, percentile
from bench.machine import CannotRun, ProcessTree
from bench.workload import BURST, PLAIN, SPACED, SPACED_SHORT, Shape, Target

PLAIN_AT_ONCE = 64
STREAMS_AT_ONCE = 16
TIMED_AT_ONCE = (1, 16, 64)
PAUSE_S = 0.01


class Pace(msgspec.Struct, frozen=True):
    """How many rounds there are, and the duration of each measurement in a round, in seconds."""

    rounds: int
    warm_s: float
    plain_s: float
    burst_s: float
    spaced_s: float
    timed_s: float
    after_s: float


FULL = Pace(rounds=3, warm_s=2, plain_s=4, burst_s=2, spaced_s=5, timed_s=4, after_s=2)
QUICK = Pace(rounds=1, warm_s=0.5, plain_s=2, burst_s=1, spaced_s=1.2, timed_s=1, after_s=0.3)


class Site(msgspec.Struct, frozen=True):
    """What every measurement needs: a work folder, the upstream's port, the pace, and the gateways that were chosen."""

    folder: Path
    upstream_port: int
    pace: Pace
    step: Callable[[str], None]  # called before each measurement with its name
    gateways: Sequence[Gateway] = ()

    @property
    def is_quick(self) -> bool:
        return self.pace is QUICK


def measure_all(site: Site) -> tuple[list[Timing], list[GatewayFigures]]:
    """The same loads sent directly to the upstream, and through each gateway.

    They take turns: two starts of the same program differ by 5%, because of its memory layout, and minutes by more.
    """
    with contextlib.suppress(CannotRun):  # then our own client is used instead
        debian_program("wrk", "wrk")
    site.step("directly to the upstream")
    target = Target(site.upstream_port)
    run_load(target, SPACED_SHORT, PLAIN_AT_ONCE, 0.5)
    direct = [measure_times(target, at_once, site.pace.timed_s) for at_once in TIMED_AT_ONCE]
    rounds = [
        [measure_gateway(one, site, direct, number) for one in site.gateways] for number in range(site.pace.rounds)
    ]
    return direct, [GatewayFigures.median(measured) for measured in zip(*rounds, strict=True)]


def measure_gateway(gateway: Gateway, site: Site, direct: list[Timing], number: int) -> GatewayFigures:
    figures = GatewayFigures(name=gateway.name)
    try:
        site.step(gateway.name)
        figures.version = gateway.install()
        with running(gateway, site.folder / f"{gateway.name.lower()}-{number}", site.upstream_port) as started:
            figures.cold_start_s = started.cold_start_s
            _measure_running(figures, started, site, direct)
    except (CannotRun, OSError) as reason:  # TimeoutError is an OSError
        figures.failure = str(reason) or type(reason).__name__
    return figures


def _measure_running(figures: GatewayFigures, started: Running, site: Site, direct: list[Timing]) -> None:
    """The memory under load is of requests that are answered. It is read before wrk, which leaves some unanswered.

    `rss_after_mb` is read after it: a gateway that charges for what a client leaves has counted it by then.
    """
    tree, target, pace = started.tree, started.target, site.pace
    time.sleep(pace.after_s)
    figures.rss_idle_mb = tree.rss_mb
    run_load(target, PLAIN, PLAIN_AT_ONCE, pace.warm_s)
    rss_plain_mb = tree.rss_mb
    figures.burst, _ = measure_streams(tree, target, BURST, pace.burst_s)
    figures.spaced, rss_streams_mb = measure_streams(tree, target, SPACED, pace.spaced_s)
    for timing in direct:
        seen = measure_times(target, timing.at_once, pace.timed_s)
        figures.added.append(seen.minus(timing))
    figures.rss_load_mb = max(rss_plain_mb, rss_streams_mb, tree.rss_mb)
    figures.plain = measure_plain(started, pace, site.folder)
    time.sleep(pace.after_s)
    figures.rss_after_mb = tree.rss_mb


def measure_plain(started: Running, pace: Pace, folder: Path) -> Cost:
    """64 connections: wrk if the gateway is fast, otherwise our own client, which never aborts a request."""
    warm = run_load(started.target, PLAIN, PLAIN_AT_ONCE, pace.warm_s)
    tree, before_s = started.tree, started.tree.cpu_s
    if warm.per_s >= wrk.RATE_MIN and wrk.is_installed():
        result = uvloop.run(wrk.drive_wrk(started.target, PLAIN_AT_ONCE, pace.plain_s, folder))
    else:
        result = run_load(started.target, PLAIN, PLAIN_AT_ONCE, pace.plain_s)
    return cost_of(result, tree.cpu_s - before_s)


def measure_streams(tree: ProcessTree, target: Target, shape: Shape, seconds: float) -> tuple[Cost, float]:
    """Returns the cost of a stream and the peak memory."""
    run_load(target, shape, STREAMS_AT_ONCE, min(0.5, seconds / 4))
    before_s = tree.cpu_s
    pause_s = PAUSE_S if shape.gap_ms else 0.0
    load = Load(target.port, [target.request(shape)], shape, STREAMS_AT_ONCE, seconds, pause_s)
    result, most_mb = uvloop.run(drive_watched(load, lambda: tree.rss_mb))
    return cost_of(result, tree.cpu_s - before_s), most_mb


def measure_times(target: Target, at_once: int, seconds: float) -> Timing:
    """A single connection uses short streams: their length does not matter there, and more of them fit."""
    shape = SPACED_SHORT if at_once == 1 else SPACED
    load = Load(target.port, [target.request(shape)], shape, at_once, seconds, PAUSE_S)
    result = uvloop.run(drive(load))
    return Timing(at_once=at_once, error=result.error, **streamed_ms(result))


def streamed_ms(result: LoadResult) -> dict[str, float]:
    """To the first token, and between two chunks."""
    times = {"first": result.first_ms, "gap": result.gap_ms}
    return {f"{name}_p{percent}_ms": percentile(ms, percent) for name, ms in times.items() for percent in (50, 99)}


def line_of(subject: str, size: int, started: Running, load: Load) -> Line:
    """What a load costs and how long its replies take, as a line of a table."""
    before_s = started.tree.cpu_s
    result = uvloop.run(drive(load))
    cpu_us = 1e6 * (started.tree.cpu_s - before_s) / max(1, result.good)
    return Line(subject=subject, size=size, figures={"cpu_us": cpu_us, **times_of(result)}, error=result.error)


def with_ratio(lines: Sequence[Line], kind_of: Callable[[Line], object] = lambda _: None) -> list[Line]:
    """The lines with their CPU as a multiple of that of the first of their kind."""
    least_us, found = dict[object, float](), list[Line]()
    for line in lines:
        cpu_us = line.figures.get("cpu_us", 0.0)
        figures = {**line.figures, "cpu_ratio": cpu_us / (least_us.setdefault(kind_of(line), cpu_us) or 1.0)}
        found.append(msgspec.structs.replace(line, figures=figures))
    return found


def times_of(result: LoadResult) -> dict[str, float]:
    times_ms = {f"p{percent}_ms": percentile(result.took_ms, percent) for percent in (50, 99)}
    return times_ms | {"max_ms": max(result.took_ms, default=0.0), "per_s": result.per_s}


def cost_of(result: LoadResult, cpu_s: float) -> Cost:
    return Cost(
        cpu_us=1e6 * cpu_s / result.good if result.good else None,
        served=result.good,
        per_s=result.per_s,
        core_share=cpu_s / result.seconds if result.seconds else 0.0,
        error=result.error,
    )


def run_load(target: Target, shape: Shape, at_once: int, seconds: float) -> LoadResult:
    return uvloop.run(drive(Load(target.port, [target.request(shape)], shape, at_once, seconds)))
