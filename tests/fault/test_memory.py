"""The memory of a process: flat over many requests, and little for each open stream, which later streams reuse.

$CADENZA_MEMORY_REQUESTS and $CADENZA_STREAMS make the runs longer; the figures of each are shown.
"""

import asyncio
import itertools
import os
from collections import Counter

import pytest

from cadenza.core.codes import make_key
from tests.fault.upstream_process import FAILING, WORDS, Behaviour, UpstreamProcess
from tests.load import ConnectionPool, allow_many_files, chat_request
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

REQUESTS = int(os.environ.get("CADENZA_MEMORY_REQUESTS") or 1200)
STREAMS = int(os.environ.get("CADENZA_STREAMS") or 200)
CREDIT_NANO = 10**15
AT_ONCE = 16
READINGS = 12
WARM_READINGS = 4  # caches and pools are full by then
MIB = 2**20
SPARE_BYTES = 8 * MIB  # what the allocator and the garbage collector may keep
GROWTH_BYTES_MAX = 5 * MIB
STREAM_BYTES_MAX = 100_000
WAVES = 3
ROOM = 4  # times the streams: a route far below its ceiling does not lower it when it is slow

pytestmark = [pytest.mark.timeout(600 + REQUESTS // 5 + STREAMS), pytest.mark.slow(reason="a soak")]


async def leave_early(pool: ConnectionPool, request: bytes) -> int:
    """A client that leaves in the middle of its stream."""
    connection = await pool.take()
    replying = connection.begin(request)
    await connection.wait_for_data()
    connection.close()
    return (await replying).status


async def send_one(pool: ConnectionPool, key: str, number: int) -> int:
    """The status of one request; the number selects one of all kinds, each with a text of its own."""
    content = f"{number} is the number of this request."
    match number % 10:
        case 0 | 1 | 2:
            return (await pool.ask(chat_request(key, content=content))).status
        case 3 | 4 | 5:
            return (await pool.ask(chat_request(key, stream=True, content=content))).status
        case 6:
            return await leave_early(pool, chat_request(key, stream=True, content=content))
        case 7:
            return (await pool.ask(chat_request(make_key(), content=content))).status
        case 8:
            return (await pool.ask(chat_request(key, content=content).replace(b'"forte"', b'"largo"'))).status
        case _:
            return (await pool.ask(chat_request(key, content=FAILING))).status


def send_all_kinds(process: ServiceProcess, key: str) -> tuple[Counter[int], list[int]]:
    """How many requests had each status, and the resident bytes at even distances."""
    numbers, statuses, readings = itertools.count(), Counter[int](), list[int]()

    async def client(pool: ConnectionPool) -> None:
        while (number := next(numbers)) < REQUESTS:
            statuses[await send_one(pool, key, number)] += 1
            if number % (REQUESTS // READINGS) == REQUESTS // READINGS - 1:
                readings.append(process.rss_bytes)

    async def run() -> None:
        pool = ConnectionPool(process.port)
        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client(pool))
        pool.close()

    asyncio.run(run())
    return statuses, readings


def test_memory_is_flat_over_requests_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Streams, plain replies, bad requests, unknown keys, upstream faults and disconnects leave nothing in memory."""
    with UpstreamProcess(Behaviour(word_s=0.002)) as upstream:
        spec = ServiceSpec({"upstream": upstream.base_url}, {"forte": [RouteSpec("upstream")]})
        with Deployment(spec, CREDIT_NANO) as deployment:
            process = deployment.start()
            statuses, readings = send_all_kinds(process, deployment.key)
            grown_bytes = max(readings[WARM_READINGS:]) - readings[WARM_READINGS - 1]
            with capsys.disabled():
                shown = ", ".join(f"{reading / MIB:.1f}" for reading in readings)
                print(f"\n{REQUESTS} requests {dict(statuses)}: {shown} MiB", end="")  # noqa: T201
            assert statuses[200] >= REQUESTS * 0.6
            assert {400, 401, 502} < statuses.keys() <= {200, 400, 401, 429, 502}
            assert grown_bytes < GROWTH_BYTES_MAX
            wait_until(deployment.ledger.is_given_back, "the return of every reserve")
            deployment.ledger.check()
            assert process.metric("cadenza_slots_taken") == process.metric("cadenza_requests_in_flight") == 0


def open_and_end(
    deployment: Deployment, upstream: UpstreamProcess, numbers: range, *, until_marked: bool = False
) -> int:
    """The resident bytes while so many streams are open and silent; then they end whole."""
    process = deployment.processes[0]

    async def run() -> tuple[int, list[Reply]]:
        requests = [ChatRequest(number, stream=True) for number in numbers]
        replies = [asyncio.create_task(send(process.port, deployment.key, request)) for request in requests]

        def are_open() -> bool:
            assert not any(reply.done() for reply in replies), "a stream ended too early"
            return upstream.counts().holding == len(requests) and (
                not until_marked or deployment.ledger.marked_tokens() == len(requests)
            )

        await asyncio.to_thread(wait_until, are_open, "every stream being open")
        bytes_open = process.rss_bytes
        upstream.release()
        return bytes_open, await asyncio.gather(*replies)

    bytes_open, replies = asyncio.run(run())
    assert [reply.text for reply in replies] == ["".join(WORDS)] * len(numbers)
    assert all(reply.is_done for reply in replies)
    wait_until(lambda: process.metric("cadenza_slots_taken") == 0, "every slot being free")
    return bytes_open


def test_open_streams_cost_little_memory_and_give_it_back(capsys: pytest.CaptureFixture[str]) -> None:
    """An open stream costs less than 100 kB, and later streams need no more than the first ones did."""
    allow_many_files()
    with UpstreamProcess(Behaviour(holds_after=1)) as upstream:
        routes = {"forte": [RouteSpec("upstream", silence_s=600.0)]}
        spec = ServiceSpec({"upstream": upstream.base_url}, routes, limits={"concurrency": ROOM * STREAMS})
        with Deployment(spec, CREDIT_NANO) as deployment:
            process = deployment.start()
            open_and_end(deployment, upstream, range(20), until_marked=True)  # a mark loads the tokenizer
            before_bytes = process.rss_bytes
            waves = [range(STREAMS * wave, STREAMS * (wave + 1)) for wave in range(1, 1 + WAVES)]
            open_bytes = [open_and_end(deployment, upstream, wave) - before_bytes for wave in waves]
            ended_bytes = process.rss_bytes - before_bytes
            with capsys.disabled():
                shown = ", ".join(f"{size / STREAMS / 1000:.1f}" for size in open_bytes)
                print(f"\n{STREAMS} open streams: {shown} kB each, {ended_bytes / MIB:.1f} MiB after them", end="")  # noqa: T201
            assert max(open_bytes) < STREAMS * STREAM_BYTES_MAX
            assert open_bytes[-1] < open_bytes[1] * 1.25 + SPARE_BYTES
            assert ended_bytes < open_bytes[-1] * 1.25 + SPARE_BYTES
            deployment.ledger.check()
