"""Closed-loop load from our own client: a fixed number of connections, each sending its next request after a reply.

Streams that have started always run to their end, so the gateway's CPU time is divided by everything it served. Starts
are spread over the length of a reply, and a short random pause follows each reply; otherwise streams of equal length
would run in lockstep.
"""

import asyncio
import collections
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from bench.client import Connection, Reply
from bench.workload import CHAT, Protocol, Shape

REPLY_S = 60.0
SAMPLE_S = 0.25
SEED = 64


class Load(msgspec.Struct, frozen=True):
    """A load: the requests to send in turn, the number of connections, and for how long to start new requests."""

    port: int
    requests: Sequence[bytes]
    shape: Shape
    at_once: int
    seconds: float
    pause_s: float = 0.0  # longest pause after a reply; if set, starts are spread too
    requests_max: int | None = None
    protocol: Protocol = CHAT


class LoadResult:
    """The result of a load. Times are in milliseconds."""

    def __init__(self) -> None:
        self.good = 0
        self.seconds = 0.0
        self.errors: collections.Counter[str] = collections.Counter()
        self.took_ms: list[float] = []
        self.first_ms: list[float] = []
        self.gap_ms: list[float] = []

    @property
    def per_s(self) -> float:
        return self.good / self.seconds if self.seconds else 0.0

    @property
    def error(self) -> str | None:
        """The number of errors and the most frequent one, or None."""
        if not self.errors:
            return None
        reason, _ = self.errors.most_common(1)[0]
        return f"{self.errors.total()} of {self.good + self.errors.total()} failed: {reason}"

    def add(self, reply: Reply, shape: Shape) -> None:
        if fault := reply.fault(shape):
            self.errors[fault] += 1
            return
        self.good += 1
        self.took_ms.append(1000 * reply.took_s)
        self.first_ms.append(1000 * reply.marks_s[0])
        self.gap_ms.extend(1000 * (after - before) for before, after in itertools.pairwise(reply.marks_s))


class Driver:
    """Runs one load."""

    def __init__(self, load: Load) -> None:
        self.result = LoadResult()
        self._load = load
        self._requests = itertools.cycle(load.requests)
        self._left = load.requests_max or 10**12
        self._random = random.Random(SEED)  # noqa: S311 the same pauses in every run

    async def run(self) -> LoadResult:
        began_s = time.perf_counter()
        self._until_s = began_s + self._load.seconds
        async with asyncio.TaskGroup() as workers:
            for number in range(self._load.at_once):
                workers.create_task(self._work(number))
        self.result.seconds = time.perf_counter() - began_s
        return self.result

    async def _work(self, number: int) -> None:
        if self._load.pause_s:
            reply_s = self._load.shape.chunks * self._load.shape.gap_ms / 1000
            await asyncio.sleep(reply_s * number / self._load.at_once)
        connection: Connection | None = None
        while time.perf_counter() < self._until_s and self._left > 0:
            self._left -= 1
            connection = await self._ask(connection)
            if self._load.pause_s:
                await asyncio.sleep(self._random.uniform(0, self._load.pause_s))
        if connection:
            connection.close()

    async def _ask(self, connection: Connection | None) -> Connection | None:
        """Send one request. Returns the connection if it can be reused."""
        try:
            async with asyncio.timeout(REPLY_S):
                if connection is None or not connection.is_open:
                    connection = await Connection.open(self._load.port, self._load.protocol)
                reply = await connection.send(next(self._requests))
        except TimeoutError:
            self.result.errors[f"no reply in {REPLY_S:.0f} s"] += 1
        except OSError as error:
            self.result.errors[type(error).__name__] += 1
        else:
            self.result.add(reply, self._load.shape)
            return connection
        if connection:
            connection.close()
        await asyncio.sleep(0.01)
        return None


async def drive(load: Load) -> LoadResult:
    return await Driver(load).run()


@contextlib.asynccontextmanager
async def sampled(look: Callable[[], float], every_s: float = SAMPLE_S) -> AsyncIterator[list[float]]:
    """Samples during a block."""
    samples = [look()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(every_s)
            samples.append(look())

    watching = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        watching.cancel()


async def drive_watched(load: Load, look: Callable[[], float]) -> tuple[LoadResult, float]:
    """Returns the result and the largest sample."""
    async with sampled(look) as samples:
        return await drive(load), max(samples)


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile of the values; 0 if there are none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
