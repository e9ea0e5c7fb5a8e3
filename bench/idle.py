"""Cadenza alone: what an open stream costs in memory while its upstream is silent."""

import asyncio
import time

import uvloop

from bench.alone import Scope
from bench.asking import SILENT, SPACED_SHORT
from bench.client import Connection
from bench.figures import Line, Section
from bench.gateways.base import Running
from bench.load import Loop, drive

OPENING_AT_ONCE = 64
OPEN_S = 120.0
SETTLE_S = 2.5  # so long that the service has marked them all
POLL_S = 0.01
WARM_AT_ONCE = 16
WARM_S = 1.0


def measure_idle(started: Running, scope: Scope) -> Section:
    """Memory is counted from before the first of them, for what one round leaves free the next would fill again.

    A few come before that and stay long enough to be counted, for the tokenizer is loaded once and not for each.
    """
    target = started.target
    uvloop.run(drive(Loop(target.port, [target.request(SPACED_SHORT)], SPACED_SHORT, WARM_AT_ONCE, WARM_S)))
    uvloop.run(_hold_open(started, WARM_AT_ONCE))
    lines, before_mb = [], started.tree.rss_mb
    for streams in scope.idle_streams:
        opened, open_mb, took_s = uvloop.run(_hold_open(started, streams))
        started.tree.settle()
        figures = {
            "rss_kb_per_stream": 1000 * (open_mb - before_mb) / max(1, opened),
            "rss_before_mb": before_mb,
            "rss_open_mb": open_mb,
            "rss_after_mb": started.tree.rss_mb,
            "opening_s": took_s,
        }
        complaint = None if opened == streams else f"only {opened} of {streams} began"
        lines.append(Line(subject=f"{streams:,}", size=streams, figures=figures, complaint=complaint))
    note = "Streams whose upstream sent one chunk and then nothing, all open at once."
    return Section(title="Idle open streams", note=note, lines=lines)


async def _hold_open(started: Running, streams: int) -> tuple[int, float, float]:
    """How many began, the memory while all are open, and how long the opening took."""
    request = started.target.request(SILENT)
    connections: list[Connection] = []
    began_s = time.perf_counter()
    turn = asyncio.Semaphore(OPENING_AT_ONCE)

    async def begin() -> None:
        async with turn:
            connection = await Connection.open(started.target.port)
            connections.append(connection)
            connection.ask(request).add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            while not connection.marks_s and connection.is_open:  # noqa: ASYNC110 an event would cost every load
                await asyncio.sleep(POLL_S)

    try:
        async with asyncio.timeout(OPEN_S):
            await asyncio.gather(*(begin() for _ in range(streams)))
    except (TimeoutError, OSError):
        pass  # those that began are counted
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(SETTLE_S)
    opened, open_mb = sum(bool(one.marks_s) and one.is_open for one in connections), started.tree.rss_mb
    for connection in connections:
        connection.close()
    return opened, open_mb, took_s
