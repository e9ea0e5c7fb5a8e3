"""The memory of a process: flat over any number of requests, and a little for each open stream, used again later.

$CADENZA_MEMORY_REQUESTS and $CADENZA_STREAMS make the runs longer; the figures of each are shown.
"""

import asyncio
import itertools
import os
from collections import Counter

import pytest

from cadenza.core.apikey import make_key
from tests.fault.crowd import FAILING, WORDS, Crowd, Manner
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.load import Lines, allow_many_files, chat_request
from tests.fault.wire import Ask, Seen, send
from tests.service import RouteSpec, ServiceSpec

REQUESTS = int(os.environ.get("CADENZA_MEMORY_REQUESTS") or 2400)
STREAMS = int(os.environ.get("CADENZA_STREAMS") or 300)
CREDIT_NANO = 10**15
AT_ONCE = 16
READINGS = 12
WARM_READINGS = 4  # caches and pools are full by then
SPARE_BYTES = 8 * 1024 * 1024  # what the allocator and the collector may keep
MIB = 2**20
GROWTH_BYTES_MAX = 10 * MIB
STREAM_BYTES_MAX = 100_000
WAVES = 3
OPEN_S = 60.0
ROOM = 4  # so many times the streams: a route whose ceiling is far away does not lower it when it is slow

pytestmark = pytest.mark.timeout(120 + REQUESTS // 20 + STREAMS // 5)


async def leave(lines: Lines, request: bytes) -> int:
    """A client that goes away in the middle of its stream."""
    line = await lines.take()
    answer = line.begin(request)
    await line.wait_for_data()
    line.leave()
    return (await answer).status


async def send_one(lines: Lines, key: str, number: int) -> int:
    """The status of one request out of every kind there is, each with a text of its own."""
    content = f"{number} is the number of this request."
    match number % 10:
        case 0 | 1 | 2:
            return (await lines.ask(chat_request(key, content=content))).status
        case 3 | 4 | 5:
            return (await lines.ask(chat_request(key, stream=True, content=content))).status
        case 6:
            return await leave(lines, chat_request(key, stream=True, content=content))
        case 7:
            return (await lines.ask(chat_request(make_key(), content=content))).status
        case 8:
            return (await lines.ask(chat_request(key, content=content).replace(b'"forte"', b'"largo"'))).status
        case _:
            return (await lines.ask(chat_request(key, content=FAILING))).status


def mixed_run(node: Node, key: str) -> tuple[Counter[int], list[int]]:
    """How many had each status, and the resident bytes at even distances."""
    numbers, statuses, readings = itertools.count(), Counter[int](), list[int]()

    async def client(lines: Lines) -> None:
        while (number := next(numbers)) < REQUESTS:
            statuses[await send_one(lines, key, number)] += 1
            if number % (REQUESTS // READINGS) == REQUESTS // READINGS - 1:
                readings.append(node.rss_bytes)

    async def run() -> None:
        lines = Lines(node.port)
        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client(lines))
        lines.close()

    asyncio.run(run())
    return statuses, readings


def test_memory_is_flat_over_many_requests_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Streams, replies, mistakes, unknown_keys, faults and clients that leave: none of them leaves anything behind."""
    with Crowd(Manner(word_s=0.002)) as crowd:
        spec = ServiceSpec({"crowd": crowd.base_url}, {"forte": [RouteSpec("crowd", "crowd")]})
        with Fleet("", CREDIT_NANO, spec) as fleet:
            node = fleet.start()
            statuses, readings = mixed_run(node, fleet.key)
            grown_bytes = max(readings[WARM_READINGS:]) - readings[WARM_READINGS - 1]
            with capsys.disabled():
                shown = ", ".join(f"{reading / MIB:.1f}" for reading in readings)
                print(f"\n{REQUESTS} requests {dict(statuses)}: {shown} MiB", end="")  # noqa: T201
            assert statuses[200] >= REQUESTS * 0.6
            assert {400, 401, 502} < statuses.keys() <= {200, 400, 401, 429, 502}
            assert grown_bytes < GROWTH_BYTES_MAX
            wait_until(lambda: fleet.books.open_holds == 0, "the end of every hold")
            fleet.books.prove()
            assert node.metric("cadenza_slots_taken") == node.metric("cadenza_requests_in_flight") == 0


def open_and_end(fleet: Fleet, node: Node, crowd: Crowd, numbers: range) -> int:
    """The resident bytes while so many streams are open and silent; then they end whole."""

    async def run() -> tuple[int, list[Seen]]:
        replies = [asyncio.create_task(send(node.port, fleet.key, Ask(number, stream=True))) for number in numbers]
        count = len(numbers)

        def are_open() -> bool:
            assert not any(reply.done() for reply in replies), "a stream ended too early"
            return crowd.counts().holding == count

        await asyncio.to_thread(wait_until, are_open, "every stream being open", OPEN_S)
        bytes_open = node.rss_bytes
        crowd.release()
        return bytes_open, await asyncio.gather(*replies)

    bytes_open, replies = asyncio.run(run())
    assert [seen.text for seen in replies] == ["".join(WORDS)] * len(numbers)
    assert all(seen.is_done for seen in replies)
    wait_until(lambda: node.metric("cadenza_slots_taken") == 0, "every slot being free")
    return bytes_open


def test_open_streams_cost_little_and_give_it_back(capsys: pytest.CaptureFixture[str]) -> None:
    """An open stream costs less than 100 kB, and as many streams later need no more than the first ones did."""
    allow_many_files()
    with Crowd(Manner(holds_after=1)) as crowd:
        routes = {"forte": [RouteSpec("crowd", "crowd", silence_s=120.0)]}
        spec = ServiceSpec({"crowd": crowd.base_url}, routes, limits={"concurrency": ROOM * STREAMS})
        with Fleet("", CREDIT_NANO, spec) as fleet:
            node = fleet.start()
            open_and_end(fleet, node, crowd, range(20))
            before_bytes = node.rss_bytes
            waves = [range(STREAMS * wave, STREAMS * (wave + 1)) for wave in range(1, 1 + WAVES)]
            open_bytes = [open_and_end(fleet, node, crowd, wave) - before_bytes for wave in waves]
            ended_bytes = node.rss_bytes - before_bytes
            with capsys.disabled():
                shown = ", ".join(f"{size / STREAMS / 1000:.1f}" for size in open_bytes)
                print(f"\n{STREAMS} open streams: {shown} kB each, {ended_bytes / MIB:.1f} MiB after them", end="")  # noqa: T201
            assert max(open_bytes) < STREAMS * STREAM_BYTES_MAX
            assert open_bytes[-1] < open_bytes[1] * 1.25 + SPARE_BYTES
            assert ended_bytes < open_bytes[-1] * 1.25 + SPARE_BYTES
            fleet.books.prove()
