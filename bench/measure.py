"""Measure one gateway: cold start, plain requests, streams, latency and memory.

The cost of a request is the user and system time of the gateway's process tree divided by the requests it served.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench import wrk
from bench.figures import Cost, GatewayFigures, Timing
from bench.gateways.base import Gateway, Running, running
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
    """What every measurement needs: a work folder, the upstream's port, the pace and the progress bar."""

    folder: Path
    upstream_port: int
    pace: Pace
    step: Callable[[str], None]  # called before each measurement with its name


def measure_direct(site: Site) -> list[Timing]:
    """Time the same loads sent directly to the upstream."""
    site.step("directly to the upstream")
    target = Target(site.upstream_port)
    _run_load(target, SPACED_SHORT, PLAIN_AT_ONCE, 0.5)
    return [measure_times(target, at_once, site.pace.timed_s) for at_once in TIMED_AT_ONCE]


def measure_gateways(gateways: Sequence[Gateway], site: Site, direct: list[Timing]) -> list[GatewayFigures]:
    """Take turns: two starts of the same program differ by 5%, because of its memory layout, and minutes by more."""
    rounds = [
        [measure_gateway(gateway, site, direct, number) for gateway in gateways] for number in range(site.pace.rounds)
    ]
    return [GatewayFigures.median(measured) for measured in zip(*rounds, strict=True)]


def measure_gateway(gateway: Gateway, site: Site, direct: list[Timing], number: int) -> GatewayFigures:
    figures = GatewayFigures(name=gateway.name)
    try:
        site.step(f"{gateway.name}: install")
        figures.version = gateway.install()
        site.step(f"{gateway.name}: start")
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
    site.step(f"{figures.name}: streams")
    _run_load(target, PLAIN, PLAIN_AT_ONCE, pace.warm_s)
    rss_plain_mb = tree.rss_mb
    figures.burst, _ = measure_streams(tree, target, BURST, pace.burst_s)
    figures.spaced, rss_streams_mb = measure_streams(tree, target, SPACED, pace.spaced_s)
    site.step(f"{figures.name}: latency")
    for timing in direct:
        seen = measure_times(target, timing.at_once, pace.timed_s)
        figures.added.append(seen.minus(timing))
    figures.rss_load_mb = max(rss_plain_mb, rss_streams_mb, tree.rss_mb)
    site.step(f"{figures.name}: plain requests")
    figures.plain = measure_plain(started, pace, site.folder)
    time.sleep(pace.after_s)
    figures.rss_after_mb = tree.rss_mb


def measure_plain(started: Running, pace: Pace, folder: Path) -> Cost:
    """64 connections: wrk if the gateway is fast, otherwise our own client, which never aborts a request."""
    warm = _run_load(started.target, PLAIN, PLAIN_AT_ONCE, pace.warm_s)
    tree, before_s = started.tree, started.tree.cpu_s
    if warm.per_s >= wrk.RATE_MIN and wrk.is_installed():
        result = uvloop.run(wrk.drive_wrk(started.target, PLAIN_AT_ONCE, pace.plain_s, folder))
    else:
        result = _run_load(started.target, PLAIN, PLAIN_AT_ONCE, pace.plain_s)
    return cost_of(result, tree.cpu_s - before_s)


def measure_streams(tree: ProcessTree, target: Target, shape: Shape, seconds: float) -> tuple[Cost, float]:
    """Returns the cost of a stream and the peak memory."""
    _run_load(target, shape, STREAMS_AT_ONCE, min(0.5, seconds / 4))
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
    return Timing(
        at_once=at_once,
        first_p50_ms=percentile(result.first_ms, 50),
        first_p99_ms=percentile(result.first_ms, 99),
        gap_p50_ms=percentile(result.gap_ms, 50),
        gap_p99_ms=percentile(result.gap_ms, 99),
        error=result.error,
    )


def cost_of(result: LoadResult, cpu_s: float) -> Cost:
    return Cost(
        cpu_us=1e6 * cpu_s / result.good if result.good else None,
        served=result.good,
        per_s=result.per_s,
        core_share=cpu_s / result.seconds if result.seconds else 0.0,
        error=result.error,
    )


def _run_load(target: Target, shape: Shape, at_once: int, seconds: float) -> LoadResult:
    return uvloop.run(drive(Load(target.port, [target.request(shape)], shape, at_once, seconds)))
