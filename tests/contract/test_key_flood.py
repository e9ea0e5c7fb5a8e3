"""A flood of keys that are none, from one address: it is turned away in good order, and nobody else is hurt.

The flood runs once for all tests of this file. The service believes `x-forwarded-for` from its own machine, as behind
a proxy, so that requests can come from several addresses.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import msgspec
import pytest

from cadenza.core.apikey import make_key
from cadenza.gateway.limits import STRANGERS_OF_ONE_ADDRESS
from tests.contract.wire import Reply, Wire, parse_raw
from tests.loopback import LoopbackUpstream
from tests.service import Service, ordinary_spec

CONNECTIONS = 20
UNKNOWN = 1400
MALFORMED = 600
BODY = b'{"messages": [{"role": "user", "content": "hi"}]}'
HEADS = (
    "GET /v1/models HTTP/1.1\r\n",
    "GET /v1/usage HTTP/1.1\r\n",
    f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(BODY)}\r\n",
)
ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}


class Flood(msgspec.Struct):
    """What each kind of request was answered with while the flood was on."""

    unknown: list[Reply] = []
    malformed: list[Reply] = []
    good: list[Reply] = []
    good_ends_s: list[float] = []  # when each good request had its answer, the beginning first
    elsewhere: list[Reply] = []
    taken_s: float = 0.0


class Connection:
    """One connection, kept for as many requests as are asked over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, key: str, number: int = 0, address: str | None = None) -> Reply:
        line = HEADS[number % len(HEADS)]
        forwarded = f"x-forwarded-for: {address}\r\n" if address else ""
        head = f"{line}host: 127.0.0.1\r\nauthorization: Bearer {key}\r\n{forwarded}\r\n"
        self._writer.write(head.encode() + (BODY if line.startswith("POST") else b""))
        raw_head = await self._reader.readuntil(b"\r\n\r\n")
        reply = parse_raw(raw_head)
        body = await self._reader.readexactly(int(reply.headers["content-length"]))
        return msgspec.structs.replace(reply, body=body)


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def make_flood(port: int, good_key: str) -> Flood:
    flood = Flood()
    begun_s = time.monotonic()
    keys = [make_key() for _ in range(UNKNOWN)] + [make_key()[:-1] + "-" for _ in range(MALFORMED)]
    left = iter(enumerate(keys))

    async def pour() -> None:
        async with connect(port) as connection:
            for number, key in left:
                reply = await connection.ask(key, number)
                (flood.unknown if number < UNKNOWN else flood.malformed).append(reply)

    async def stay_good() -> None:
        async with connect(port) as connection:
            flood.good_ends_s.append(time.monotonic())
            while True:
                flood.good.append(await connection.ask(good_key))
                flood.good_ends_s.append(time.monotonic())

    async def come_from_elsewhere() -> None:
        async with connect(port) as connection:
            for number in range(30):
                flood.elsewhere.append(await connection.ask(make_key(), number, "198.51.100.7"))

    good = asyncio.create_task(stay_good())
    async with asyncio.timeout(60):
        await asyncio.gather(come_from_elsewhere(), *(pour() for _ in range(CONNECTIONS)))
    flood.taken_s = time.monotonic() - begun_s
    good.cancel()
    await asyncio.gather(good, return_exceptions=True)
    return flood


@pytest.fixture(scope="module")
def besieged(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(ordinary_spec(shared_upstream.base_url)) as running:
        yield running


@pytest.fixture(scope="module")
def flood(besieged: Service) -> Flood:
    """The key of the service was used once before, as by any client that was there."""
    assert Wire(besieged.port, besieged.key).get("/v1/models").status == 200
    return asyncio.run(make_flood(besieged.port, besieged.key))


def test_flood_is_answered_in_order(flood: Flood) -> None:
    """Every request of it is a 401 or a 429 in the shape of errors, and a 429 says when to come back."""
    assert len(flood.unknown) == UNKNOWN
    statuses = Counter(reply.status for reply in flood.unknown)
    assert statuses.keys() == {401, 429}, statuses
    kinds = {(reply.status, reply.body): reply for reply in flood.unknown}
    for (status, _), reply in kinds.items():
        reply.error(status, "authentication_error" if status == 401 else "rate_limit_error")
    for reply in flood.unknown:
        assert ("retry-after-ms" in reply.headers) == ("retry-after" in reply.headers) == (reply.status == 429)
        assert reply.headers.get("x-should-retry") == ("false" if reply.status == 401 else None)


def test_most_of_the_flood_is_not_looked_up(flood: Flood) -> None:
    """A 401 is a look-up: there are as many as the limit of an address allows in that time, and those under way."""
    looked_up = sum(reply.status == 401 for reply in flood.unknown)
    earned = STRANGERS_OF_ONE_ADDRESS.per_s * flood.taken_s
    assert STRANGERS_OF_ONE_ADDRESS.burst <= looked_up <= STRANGERS_OF_ONE_ADDRESS.burst + earned + CONNECTIONS
    assert looked_up < UNKNOWN / 2


def test_mistyped_key_is_told_so_in_a_flood(flood: Flood) -> None:
    """What cannot be a key is 401 every time: nobody is told to come back with it."""
    assert Counter(reply.status for reply in flood.malformed) == {401: MALFORMED}


def test_good_key_is_served_in_the_flood(flood: Flood) -> None:
    """The key that comes from the very address of the flood is served every time, as promptly as the machine allows."""
    assert len(flood.good) >= 20
    assert {reply.status for reply in flood.good} == {200}
    waits_s = [later - earlier for earlier, later in pairwise(flood.good_ends_s)]
    assert statistics.median(waits_s) < 0.5
    assert max(waits_s) < 5.0


def test_strangers_from_elsewhere_are_told_the_truth(flood: Flood) -> None:
    """Another address is not held off for what the first one does: its unknown keys are 401."""
    assert Counter(reply.status for reply in flood.elsewhere) == {401: len(flood.elsewhere)}


def test_new_key_is_served_from_elsewhere(besieged: Service, flood: Flood) -> None:
    """A key that nobody has seen is good on its first request from another address."""
    assert Wire(besieged.port, besieged.create_key()).get("/v1/models", ELSEWHERE).status == 200


def test_stranger_that_waits_as_told_is_looked_up(besieged: Service, flood: Flood) -> None:
    """The wait that the flood was told is the true one: after it, an unknown key is a 401."""

    async def run() -> tuple[Reply, Reply]:
        async with connect(besieged.port) as connection:
            refused = await connection.ask(make_key())
            while refused.status != 429:
                refused = await connection.ask(make_key())
            await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
            return refused, await connection.ask(make_key())

    refused, waited = asyncio.run(run())
    assert 1 <= int(refused.headers["retry-after-ms"]) <= 1000 / STRANGERS_OF_ONE_ADDRESS.per_s
    assert waited.status == 401


def test_all_is_well_after_the_flood(besieged: Service, flood: Flood, upstream: LoopbackUpstream) -> None:
    """The service is ready, chats are served, and nothing was written of the keys that came."""
    wire = Wire(besieged.port, besieged.key)
    assert wire.get("/readyz").status == 200
    assert [wire.chat(stream=stream).status for stream in (False, True)] == [200, 200]
    assert "internal error" not in besieged.output
    assert besieged.output.count("sk-cdz-") == 0
