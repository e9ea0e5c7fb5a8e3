"""Cadenza alone: long prompts, long streams, a flood of bad keys, and small requests beside huge ones.

Each is one section of the report. All of them ask one service with one store; what fails is told in its line.
"""

import asyncio
import random

import msgspec
import uvloop

from bench.asking import PLAIN, TEXT, Shape, Target
from bench.figures import Line, Section
from bench.gateways.base import Running
from bench.load import Loop, UsageMeter, drive, percentile
from cadenza.core.apikey import make_key
from cadenza.core.tokens import count_tokens

PROMPT_TOKENS = (1_000, 10_000, 100_000, 990_000)  # the last one is as long as a prompt may be, beside the character
HUGE_TOKENS = PROMPT_TOKENS[-1]
CHUNKS = (10, 100, 1_000, 10_000)
FLOOD_AT_ONCE = 32
FLOOD_KEYS = 500
REFUSALS = ("status 401", "status 429")
SMALL_AT_ONCE = 4
SMALL_PAUSE_S = 0.01
HUGE_AT_ONCE = 2


class Scope(msgspec.Struct, frozen=True):
    """How much of it: seconds per load, repeats of the longest prompt, numbers of idle streams."""

    seconds: float
    repeats: int
    idle_streams: tuple[int, ...]


FULL = Scope(seconds=10.0, repeats=8, idle_streams=(1_000, 5_000))
QUICK = Scope(seconds=1.2, repeats=2, idle_streams=(1_000,))


def prompt(tokens: int) -> str:
    """A text of about so many tokens: common words, in an order that is the same in every run."""
    chooser = random.Random(tokens)  # noqa: S311 a text, no secret
    text = " ".join(chooser.choices(TEXT.split(), k=tokens))
    return text[: len(text) * tokens // max(tokens, count_tokens(text))]


def measure_prompts(started: Running, scope: Scope) -> Section:
    lines = []
    for tokens in PROMPT_TOKENS:
        request = started.target.request(PLAIN, prompt(tokens))
        repeats = min(400, scope.repeats * HUGE_TOKENS // tokens)
        load = Loop(started.target.port, [request], PLAIN, 1, scope.seconds, requests_max=repeats)
        meter, cpu_s = spent(started, load)
        figures = {
            "cpu_ms": 1000 * cpu_s / max(1, meter.good),
            "cpu_us_per_1000_tokens": 1e9 * cpu_s / max(1, meter.good) / tokens,
            "p50_ms": percentile(meter.took_ms, 50),
            "max_ms": max(meter.took_ms, default=0.0),
            "body_kb": len(request) / 1000,
        }
        lines.append(Line(subject=f"{tokens:,}", size=tokens, figures=figures, complaint=meter.complaint))
    return Section(
        title="Length of the prompt",
        note="One request at a time, each with a prompt of so many tokens and a short reply.",
        lines=lines,
        axis="prompt tokens",
    )


def measure_chunks(started: Running, scope: Scope) -> Section:
    lines = []
    for chunks in CHUNKS:
        shape = Shape(chunks=chunks)
        load = Loop(started.target.port, [started.target.request(shape)], shape, 4, scope.seconds)
        meter, cpu_s = spent(started, load)
        cpu_us = 1e6 * cpu_s / max(1, meter.good)
        figures = {"cpu_us": cpu_us, "cpu_us_per_chunk": cpu_us / chunks, "p50_ms": percentile(meter.took_ms, 50)}
        lines.append(Line(subject=f"{chunks:,}", size=chunks, figures=figures, complaint=meter.complaint))
    return Section(
        title="Length of the stream",
        note="Streams without a gap between their chunks, four at once.",
        lines=lines,
        axis="chunks",
    )


def measure_flood(started: Running, scope: Scope) -> Section:
    """Well-formed keys that nobody has: they take the longest way to their refusal."""
    target = started.target
    unknown_keys = [
        msgspec.structs.replace(target, headers={"authorization": f"Bearer {make_key()}"}).request(PLAIN)
        for _ in range(FLOOD_KEYS)
    ]
    flood = Loop(target.port, unknown_keys, PLAIN, FLOOD_AT_ONCE, scope.seconds)
    calm = uvloop.run(drive(_small(target, scope.seconds)))
    refused, cpu_s = spent(started, flood)
    beside, flooded = uvloop.run(_both(_small(target, scope.seconds), flood))
    lines = [
        Line(subject="good requests alone", figures=_latency(calm), complaint=calm.complaint),
        _refused_line("the flood alone", refused, cpu_s),
        Line(subject="good requests in the flood", figures=_latency(beside), complaint=beside.complaint),
        _refused_line("the flood beside them", flooded),
    ]
    note = f"{FLOOD_AT_ONCE} connections with unknown keys, {SMALL_AT_ONCE} with a good one."
    return Section(title="A flood of invalid keys", note=note, lines=lines)


def measure_neighbours(started: Running, scope: Scope) -> Section:
    target = started.target
    huge = Loop(target.port, [target.request(PLAIN, prompt(HUGE_TOKENS))], PLAIN, HUGE_AT_ONCE, scope.seconds)
    alone = uvloop.run(drive(_small(target, scope.seconds)))
    beside, beasts = uvloop.run(_both(_small(target, scope.seconds), huge))
    lines = [
        Line(subject="small requests alone", figures=_latency(alone), complaint=alone.complaint),
        Line(subject="small requests beside huge ones", figures=_latency(beside), complaint=beside.complaint),
        Line(subject="the huge ones", figures=_latency(beasts), complaint=beasts.complaint),
    ]
    note = f"{SMALL_AT_ONCE} connections with small requests, {HUGE_AT_ONCE} with prompts of {HUGE_TOKENS:,} tokens."
    return Section(title="Small requests beside huge ones", note=note, lines=lines)


def spent(started: Running, load: Loop) -> tuple[UsageMeter, float]:
    """A load, and the CPU seconds that it cost."""
    before_s = started.tree.cpu_s
    meter = uvloop.run(drive(load))
    return meter, started.tree.cpu_s - before_s


def _small(target: Target, seconds: float) -> Loop:
    return Loop(target.port, [target.request(PLAIN)], PLAIN, SMALL_AT_ONCE, seconds, SMALL_PAUSE_S)


async def _both(one: Loop, other: Loop) -> tuple[UsageMeter, UsageMeter]:
    return await asyncio.gather(drive(one), drive(other))


def _latency(meter: UsageMeter) -> dict[str, float]:
    took_ms = meter.took_ms
    times = {"p50_ms": percentile(took_ms, 50), "p99_ms": percentile(took_ms, 99), "max_ms": max(took_ms, default=0.0)}
    return times | {"per_s": meter.per_s}


def _refused_line(subject: str, meter: UsageMeter, cpu_s: float | None = None) -> Line:
    """Refused are those whose key is unknown, and those that are turned away because there were too many of them."""
    unknown, limited = (meter.errors.pop(reason, 0) for reason in REFUSALS)
    figures = {"per_s": (unknown + limited) / meter.seconds, "of_these_429_per_s": limited / meter.seconds}
    if cpu_s is not None:
        figures["cpu_us"] = 1e6 * cpu_s / max(1, unknown + limited)
    return Line(subject=subject, figures=figures, complaint=meter.complaint)
