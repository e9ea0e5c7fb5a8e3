"""Closed loops of our own client: so many connections, each with its next request when its last is answered.

Started streams are always seen to their end, so that what a gateway spent is divided by all that it served. Starts are
spread over the length of a reply, and a short random pause follows each: else 64 streams of one length beat as one.
"""

import asyncio
import collections
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from bench.asking import Shape
from bench.client import Connection, Reply

REPLY_S = 60.0
SAMPLE_S = 0.25
SEED = 64


class Loop(msgspec.Struct, frozen=True):
    """A load: what is asked (each request in turn), how many at once, and for how long new ones are begun."""

    port: int
    requests: Sequence[bytes]
    shape: Shape
    at_once: int
    seconds: float
    pause_s: float = 0.0  # at most, after each reply; replies are then also spread at the start
    requests_max: int | None = None


class UsageMeter:
    """What a load saw. Times are in milliseconds."""

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
    def complaint(self) -> str | None:
        """The most frequent error, and how many there were."""
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
    """Runs one loop."""

    def __init__(self, loop: Loop) -> None:
        self.meter = UsageMeter()
        self._loop = loop
        self._requests = itertools.cycle(loop.requests)
        self._left = loop.requests_max or 10**12
        self._random = random.Random(SEED)  # noqa: S311 the same pauses in every run

    async def run(self) -> UsageMeter:
        began_s = time.perf_counter()
        self._until_s = began_s + self._loop.seconds
        async with asyncio.TaskGroup() as workers:
            for number in range(self._loop.at_once):
                workers.create_task(self._work(number))
        self.meter.seconds = time.perf_counter() - began_s
        return self.meter

    async def _work(self, number: int) -> None:
        if self._loop.pause_s:
            reply_s = self._loop.shape.chunks * self._loop.shape.gap_ms / 1000
            await asyncio.sleep(reply_s * number / self._loop.at_once)
        connection: Connection | None = None
        while time.perf_counter() < self._until_s and self._left > 0:
            self._left -= 1
            connection = await self._ask(connection)
            if self._loop.pause_s:
                await asyncio.sleep(self._random.uniform(0, self._loop.pause_s))
        if connection:
            connection.close()

    async def _ask(self, connection: Connection | None) -> Connection | None:
        """One request; the connection for the next, if this one is still good."""
        try:
            async with asyncio.timeout(REPLY_S):
                if connection is None or not connection.is_open:
                    connection = await Connection.open(self._loop.port)
                reply = await connection.ask(next(self._requests))
        except TimeoutError:
            self.meter.errors[f"no reply in {REPLY_S:.0f} s"] += 1
        except OSError as error:
            self.meter.errors[type(error).__name__] += 1
        else:
            self.meter.add(reply, self._loop.shape)
            return connection
        if connection:
            connection.close()
        await asyncio.sleep(0.01)
        return None


async def drive(loop: Loop) -> UsageMeter:
    return await Driver(loop).run()


async def drive_watched(loop: Loop, look: Callable[[], float]) -> tuple[UsageMeter, float]:
    """The load, and the most that was seen meanwhile by whoever looks."""
    most = look()

    async def watch() -> None:
        nonlocal most
        while True:
            await asyncio.sleep(SAMPLE_S)
            most = max(most, look())

    watching = asyncio.create_task(watch())
    try:
        return await drive(loop), most
    finally:
        watching.cancel()


def percentile(values: Sequence[float], percent: int) -> float:
    """By rank, with no interpolation past the last value; 0 of nothing."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
