"""Cadenza alone: the memory an open stream takes while its upstream is silent."""

import asyncio
import time

import uvloop

from bench.alone import RunSize
from bench.client import Connection
from bench.figures import Line, Section
from bench.gateways.base import Running
from bench.load import Load, drive
from bench.workload import SILENT, SPACED_SHORT

OPENING_AT_ONCE = 64
OPEN_S = 120.0
SETTLE_S = 2.5  # long enough for the service to mark the progress of every stream
POLL_S = 0.01
WARM_AT_ONCE = 16
WARM_S = 1.0


def measure_idle(started: Running, size: RunSize) -> Section:
    """The baseline is taken once, before the first round: a later round would reuse memory that an earlier one freed.

    A few warm-up streams come first, because loading the tokenizer is a one-time cost.
    """
    target = started.target
    uvloop.run(drive(Load(target.port, [target.request(SPACED_SHORT)], SPACED_SHORT, WARM_AT_ONCE, WARM_S)))
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
    request = started.target.request(SILENT)
    connections: list[Connection] = []
    began_s = time.perf_counter()
    turn = asyncio.Semaphore(OPENING_AT_ONCE)

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
