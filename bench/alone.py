"""Cadenza alone: long prompts, long streams, a flood of invalid keys, and small requests next to huge ones.

Each measurement is one section of the report. All of them use one running service and its store. A failure is
reported in its line.
"""

import asyncio
import random

import msgspec
import uvloop

from bench.figures import Cost, Line, Section
from bench.gateways.base import Running
from bench.load import Load, LoadResult, drive, percentile
from bench.measure import cost_of
from bench.workload import BURST, CHAT, MESSAGES, PLAIN, RESPONSES, TEXT, Shape, Target
from cadenza.core.codes import make_key
from cadenza.core.tokens import Tokenizer

PROMPT_TOKENS = (1_000, 10_000, 100_000, 990_000)  # the last is the longest prompt that fits with the character layer
HUGE_TOKENS = PROMPT_TOKENS[-1]
CHUNKS = (10, 100, 1_000, 10_000)
FLOOD_AT_ONCE = 32
FLOOD_KEYS = 500
REFUSALS = ("status 401", "status 429")
SMALL_AT_ONCE = 4
SMALL_PAUSE_S = 0.01
HUGE_AT_ONCE = 2
STREAMS_BY_PROTOCOL = "Streams by protocol"
PROTOCOLS = {"chat": CHAT, "Responses": RESPONSES, "Messages": MESSAGES}
TURNS = 3


class RunSize(msgspec.Struct, frozen=True):
    """How much to measure: seconds per load, repeats of the longest prompt, numbers of idle streams."""

    seconds: float
    repeats: int
    idle_streams: tuple[int, ...]


FULL = RunSize(seconds=10.0, repeats=8, idle_streams=(1_000, 2_000))  # of one key, which may have so many connections
QUICK = RunSize(seconds=1.2, repeats=2, idle_streams=(1_000,))


def prompt(tokens: int) -> str:
    """A text of about this many tokens: common words, in the same order in every run."""
    chooser = random.Random(tokens)  # noqa: S311 not a secret
    text = " ".join(chooser.choices(TEXT.split(), k=tokens))
    return text[: len(text) * tokens // max(tokens, Tokenizer().count(text))]


def measure_prompts(started: Running, size: RunSize) -> Section:
    lines = []
    for tokens in PROMPT_TOKENS:
        request = started.target.request(PLAIN, prompt(tokens))
        repeats = min(400, size.repeats * HUGE_TOKENS // tokens)
        load = Load(started.target.port, [request], PLAIN, 1, size.seconds, requests_max=repeats)
        result, cpu_s = measure_load(started, load)
        figures = {
            "cpu_ms": 1000 * cpu_s / max(1, result.good),
            "cpu_us_per_1000_tokens": 1e9 * cpu_s / max(1, result.good) / tokens,
            "p50_ms": percentile(result.took_ms, 50),
            "max_ms": max(result.took_ms, default=0.0),
            "body_kb": len(request) / 1000,
        }
        lines.append(Line(subject=f"{tokens:,}", size=tokens, figures=figures, error=result.error))
    return Section(
        title="Prompt length",
        note="One request at a time, each with a prompt of this many tokens and a short reply.",
        lines=lines,
        axis="prompt tokens",
    )


def measure_chunks(started: Running, size: RunSize) -> Section:
    lines = []
    for chunks in CHUNKS:
        shape = Shape(chunks=chunks)
        load = Load(started.target.port, [started.target.request(shape)], shape, 4, size.seconds)
        result, cpu_s = measure_load(started, load)
        cpu_us = 1e6 * cpu_s / max(1, result.good)
        figures = {"cpu_us": cpu_us, "cpu_us_per_chunk": cpu_us / chunks, "p50_ms": percentile(result.took_ms, 50)}
        lines.append(Line(subject=f"{chunks:,}", size=chunks, figures=figures, error=result.error))
    return Section(
        title="Stream length",
        note="Four concurrent streams with no delay between chunks.",
        lines=lines,
        axis="chunks",
    )


def measure_protocols(started: Running, size: RunSize) -> Section:
    """The loads take turns, because minutes differ more than protocols do."""
    rounds: dict[str, list[Cost]] = {name: [] for name in PROTOCOLS}
    for _ in range(TURNS):
        for name, protocol in PROTOCOLS.items():
            request = msgspec.structs.replace(started.target, path=protocol.path).request(BURST)
            load = Load(started.target.port, [request], BURST, 4, size.seconds / TURNS, protocol=protocol)
            rounds[name].append(cost_of(*measure_load(started, load)))
    costs = {name: Cost.median(of_protocol) for name, of_protocol in rounds.items()}
    lines = [Line(subject=name, figures=_cost(one), error=one.error) for name, one in costs.items()]
    return Section(title=STREAMS_BY_PROTOCOL, note=f"Four streams of {BURST.chunks} chunks at once.", lines=lines)


def measure_flood(started: Running, size: RunSize) -> Section:
    """Well-formed keys that do not exist: refusing them takes the most work."""
    target = started.target
    unknown_keys = [
        msgspec.structs.replace(target, headers={"authorization": f"Bearer {make_key()}"}).request(PLAIN)
        for _ in range(FLOOD_KEYS)
    ]
    flood = Load(target.port, unknown_keys, PLAIN, FLOOD_AT_ONCE, size.seconds)
    quiet = uvloop.run(drive(_small(target, size.seconds)))
    refused, cpu_s = measure_load(started, flood)
    during, flooded = uvloop.run(_both(_small(target, size.seconds), flood))
    lines = [
        Line(subject="valid requests, no flood", figures=_latency(quiet), error=quiet.error),
        _refused_line("the flood, no valid requests", refused, cpu_s),
        Line(subject="valid requests during the flood", figures=_latency(during), error=during.error),
        _refused_line("the flood during valid requests", flooded),
    ]
    note = f"{FLOOD_AT_ONCE} connections with unknown keys, {SMALL_AT_ONCE} with a valid key."
    return Section(title="A flood of invalid keys", note=note, lines=lines)


def measure_neighbours(started: Running, size: RunSize) -> Section:
    target = started.target
    huge = Load(target.port, [target.request(PLAIN, prompt(HUGE_TOKENS))], PLAIN, HUGE_AT_ONCE, size.seconds)
    alone = uvloop.run(drive(_small(target, size.seconds)))
    next_to_huge, huge_result = uvloop.run(_both(_small(target, size.seconds), huge))
    lines = [
        Line(subject="small requests alone", figures=_latency(alone), error=alone.error),
        Line(subject="small requests next to huge ones", figures=_latency(next_to_huge), error=next_to_huge.error),
        Line(subject="the huge requests", figures=_latency(huge_result), error=huge_result.error),
    ]
    note = f"{SMALL_AT_ONCE} connections with small requests, {HUGE_AT_ONCE} with prompts of {HUGE_TOKENS:,} tokens."
    return Section(title="Small requests next to huge ones", note=note, lines=lines)


def measure_load(started: Running, load: Load) -> tuple[LoadResult, float]:
    """Run a load. Returns its result and the CPU seconds it cost the service."""
    before_s = started.tree.cpu_s
    result = uvloop.run(drive(load))
    return result, started.tree.cpu_s - before_s


def _small(target: Target, seconds: float) -> Load:
    return Load(target.port, [target.request(PLAIN)], PLAIN, SMALL_AT_ONCE, seconds, SMALL_PAUSE_S)


async def _both(one: Load, other: Load) -> tuple[LoadResult, LoadResult]:
    return await asyncio.gather(drive(one), drive(other))


def _latency(result: LoadResult) -> dict[str, float]:
    took_ms = result.took_ms
    times = {"p50_ms": percentile(took_ms, 50), "p99_ms": percentile(took_ms, 99), "max_ms": max(took_ms, default=0.0)}
    return times | {"per_s": result.per_s}


def _cost(cost: Cost) -> dict[str, float]:
    return {} if cost.cpu_us is None else {"cpu_us": cost.cpu_us}


def _refused_line(subject: str, result: LoadResult, cpu_s: float | None = None) -> Line:
    """Count the refusals: 401 for an unknown key, 429 once there are too many of them."""
    unknown, limited = (result.errors.pop(reason, 0) for reason in REFUSALS)
    figures = {"per_s": (unknown + limited) / result.seconds, "of_these_429_per_s": limited / result.seconds}
    if cpu_s is not None:
        figures["cpu_us"] = 1e6 * cpu_s / max(1, unknown + limited)
    return Line(subject=subject, figures=figures, error=result.error)
