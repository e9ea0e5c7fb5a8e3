"""Cadenza alone: idle and long streams, long prompts, a flood of invalid keys, and small requests next to huge ones.

Each measurement is one section of the report. All of them use one running service and its store. A failure is
reported in its line.
"""

import asyncio
import random
import time

import msgspec
import uvloop

from bench.client import Connection
from bench.figures import Cost, Line, Section
from bench.gateways.base import Running, running
from bench.gateways.cadenza import Cadenza
from bench.load import Load, LoadResult, drive
from bench.measure import PAUSE_S, Site, cost_of, line_of, run_load, times_of
from bench.workload import BURST, CHAT, MESSAGES, PLAIN, RESPONSES, SILENT, SPACED_SHORT, TEXT, Shape
from cadenza.core.codes import make_key
from cadenza.core.tokens import Tokenizer

PROMPT_TOKENS = (1_000, 10_000, 100_000, 990_000)  # the last is the longest prompt that fits with the character layer
HUGE_TOKENS = PROMPT_TOKENS[-1]
CHUNKS = (10, 100, 1_000, 10_000)
FLOOD_AT_ONCE = 32
FLOOD_KEYS = 500
REFUSALS = ("status 401", "status 429")
SMALL_AT_ONCE = 4
HUGE_AT_ONCE = 2
STREAMS_BY_PROTOCOL = "Streams by protocol"
PROTOCOLS = {"chat": CHAT, "Responses": RESPONSES, "Messages": MESSAGES}
TURNS = 3
OPENING_AT_ONCE = 64
OPEN_S = 120.0
SETTLE_S = 2.5  # long enough for the service to mark the progress of every stream
POLL_S = 0.01
WARM_AT_ONCE = 16


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


def measure_alone(site: Site) -> list[Section]:
    size = QUICK if site.is_quick else FULL
    measures = (
        measure_idle,  # first, while the process has no freed memory to reuse
        *(measure_prompts, measure_chunks, measure_protocols, measure_flood, measure_neighbours),
    )
    with running(Cadenza(), site.folder / "alone", site.upstream_port) as started:
        sections = []
        for measure in measures:
            site.step(measure.__name__.replace("_", " "))
            sections.append(measure(started, size))
        return sections


def measure_idle(started: Running, size: RunSize) -> Section:
    """The baseline is taken once, before the first round: a later round would reuse memory that an earlier one freed.

    A few warm-up streams come first, because loading the tokenizer is a one-time cost.
    """
    run_load(started.target, SPACED_SHORT, WARM_AT_ONCE, 1.0)
    uvloop.run(_hold_open(started, WARM_AT_ONCE))
    started.tree.settle()
    lines, before_mb = [], started.tree.rss_mb
    for streams in size.idle_streams:
        opened, open_mb, took_s = uvloop.run(_hold_open(started, streams))
        started.tree.settle()
        figures = {
            "rss_kb_per_stream": 1000 * (open_mb - before_mb) / max(1, opened),
            "rss_before_mb": before_mb,
            "rss_open_mb": open_mb,
            "rss_after_mb": started.tree.rss_mb,
            "opening_s": took_s,
        }
        error = None if opened == streams else f"only {opened} of {streams} started"
        lines.append(Line(subject=f"{streams:,}", size=streams, figures=figures, error=error))
    note = "Concurrent open streams whose upstream sent one chunk and then nothing."
    return Section(title="Idle open streams", note=note, lines=lines)


async def _hold_open(started: Running, streams: int) -> tuple[int, float, float]:
    """Returns how many started, the memory while all are open, and the seconds it took to open them."""
    request, connections = started.target.request(SILENT), list[Connection]()
    began_s, turn = time.perf_counter(), asyncio.Semaphore(OPENING_AT_ONCE)

    async def start() -> None:
        async with turn:
            connection = await Connection.open(started.target.port)
            connections.append(connection)
            connection.send(request).add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            while not connection.marks_s and connection.is_open:  # noqa: ASYNC110 an event would slow down every load
                await asyncio.sleep(POLL_S)

    try:
        async with asyncio.timeout(OPEN_S):
            await asyncio.gather(*(start() for _ in range(streams)))
    except (TimeoutError, OSError):
        pass  # the caller reports how many started
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(SETTLE_S)
    opened, open_mb = sum(bool(one.marks_s) and one.is_open for one in connections), started.tree.rss_mb
    for connection in connections:
        connection.close()
    return opened, open_mb, took_s


def measure_prompts(started: Running, size: RunSize) -> Section:
    lines = []
    for tokens in PROMPT_TOKENS:
        request = started.target.request(PLAIN, prompt(tokens))
        repeats = min(400, size.repeats * HUGE_TOKENS // tokens)
        load = Load(started.target.port, [request], PLAIN, 1, size.seconds, requests_max=repeats)
        line = line_of(f"{tokens:,}", tokens, started, load)
        cpu_us = line.figures["cpu_us"]
        figures = {"cpu_ms": cpu_us / 1000, "cpu_us_per_1000_tokens": 1000 * cpu_us / tokens}
        figures |= {name: line.figures[name] for name in ("p50_ms", "max_ms")} | {"body_kb": len(request) / 1000}
        lines.append(msgspec.structs.replace(line, figures=figures))
    note = "One request at a time, each with a prompt of this many tokens and a short reply."
    return Section(title="Prompt length", note=note, lines=lines, axis="prompt tokens")


def measure_chunks(started: Running, size: RunSize) -> Section:
    lines = []
    for chunks in CHUNKS:
        shape = Shape(chunks=chunks)
        load = Load(started.target.port, [started.target.request(shape)], shape, 4, size.seconds)
        line = line_of(f"{chunks:,}", chunks, started, load)
        cpu_us = line.figures["cpu_us"]
        figures = {"cpu_us": cpu_us, "cpu_us_per_chunk": cpu_us / chunks, "p50_ms": line.figures["p50_ms"]}
        lines.append(msgspec.structs.replace(line, figures=figures))
    note = "Four concurrent streams with no delay between chunks."
    return Section(title="Stream length", note=note, lines=lines, axis="chunks")


def measure_protocols(started: Running, size: RunSize) -> Section:
    """The loads take turns, because minutes differ more than protocols do."""
    rounds: dict[str, list[Cost]] = {name: [] for name in PROTOCOLS}
    for _ in range(TURNS):
        for name, protocol in PROTOCOLS.items():
            request = msgspec.structs.replace(started.target, path=protocol.path).request(BURST)
            load = Load(started.target.port, [request], BURST, 4, size.seconds / TURNS, protocol=protocol)
            rounds[name].append(cost_of(*measure_load(started, load)))
    costs = {name: Cost.median(of_protocol) for name, of_protocol in rounds.items()}
    lines = [
        Line(subject=name, figures={"cpu_us": one.cpu_us} if one.cpu_us else {}, error=one.error)
        for name, one in costs.items()
    ]
    return Section(title=STREAMS_BY_PROTOCOL, note=f"Four streams of {BURST.chunks} chunks at once.", lines=lines)


def measure_flood(started: Running, size: RunSize) -> Section:
    """Well-formed keys that do not exist: refusing them takes the most work."""
    headers = [{"authorization": f"Bearer {make_key()}"} for _ in range(FLOOD_KEYS)]
    requests = [msgspec.structs.replace(started.target, headers=unknown).request(PLAIN) for unknown in headers]
    flood = Load(started.target.port, requests, PLAIN, FLOOD_AT_ONCE, size.seconds)
    refused, cpu_s = measure_load(started, flood)
    quiet, during, flooded = _beside(started, flood)
    lines = [
        Line(subject="valid requests, no flood", figures=times_of(quiet), error=quiet.error),
        _refused_line("the flood, no valid requests", refused, cpu_s),
        Line(subject="valid requests during the flood", figures=times_of(during), error=during.error),
        _refused_line("the flood during valid requests", flooded),
    ]
    note = f"{FLOOD_AT_ONCE} connections with unknown keys, {SMALL_AT_ONCE} with a valid key."
    return Section(title="A flood of invalid keys", note=note, lines=lines)


def measure_neighbours(started: Running, size: RunSize) -> Section:
    target = started.target
    huge = Load(target.port, [target.request(PLAIN, prompt(HUGE_TOKENS))], PLAIN, HUGE_AT_ONCE, size.seconds)
    names = ("small requests alone", "small requests next to huge ones", "the huge requests")
    results = zip(names, _beside(started, huge), strict=True)
    lines = [Line(subject=name, figures=times_of(one), error=one.error) for name, one in results]
    note = f"{SMALL_AT_ONCE} connections with small requests, {HUGE_AT_ONCE} with prompts of {HUGE_TOKENS:,} tokens."
    return Section(title="Small requests next to huge ones", note=note, lines=lines)


def measure_load(started: Running, load: Load) -> tuple[LoadResult, float]:
    """Run a load. Returns its result and the CPU seconds it cost the service."""
    before_s = started.tree.cpu_s
    result = uvloop.run(drive(load))
    return result, started.tree.cpu_s - before_s


def _beside(started: Running, other: Load) -> tuple[LoadResult, LoadResult, LoadResult]:
    """Small requests alone, beside the other load, and that load."""
    small = Load(started.target.port, [started.target.request(PLAIN)], PLAIN, SMALL_AT_ONCE, other.seconds, PAUSE_S)

    async def both() -> tuple[LoadResult, LoadResult]:
        return await asyncio.gather(drive(small), drive(other))

    return (uvloop.run(drive(small)), *uvloop.run(both()))


def _refused_line(subject: str, result: LoadResult, cpu_s: float | None = None) -> Line:
    """Count the refusals: 401 for an unknown key, 429 once there are too many of them."""
    unknown, limited = (result.errors.pop(reason, 0) for reason in REFUSALS)
    figures = {"per_s": (unknown + limited) / result.seconds, "of_these_429_per_s": limited / result.seconds}
    if cpu_s is not None:
        figures["cpu_us"] = 1e6 * cpu_s / max(1, unknown + limited)
    return Line(subject=subject, figures=figures, error=result.error)
