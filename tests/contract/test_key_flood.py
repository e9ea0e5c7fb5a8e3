"""A flood of unknown keys from one address is refused in order, and other clients are not affected.

The flood runs once for all tests of this file. The service trusts `x-forwarded-for` from its own machine, as behind a
proxy, so that requests can come from several addresses.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from cadenza.core.codes import make_key
from cadenza.gateway.unknown_keys import LOOK_UPS_OF_ONE_ADDRESS
from tests.load import ConnectionPool, TimedReply
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service, wait_until
from tests.service_config import ordinary_spec

CONNECTIONS = 20
UNKNOWN = 1000
MALFORMED = 300
ELSEWHERE_KEYS = 30
BODY = b'{"messages": [{"role": "user", "content": "hi"}]}'
HEADS = (
    "GET /v1/models HTTP/1.1\r\n",
    "GET /v1/usage HTTP/1.1\r\n",
    f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(BODY)}\r\n",
)
ELSEWHERE = "203.0.113.9"


class Flood(msgspec.Struct):
    """The replies to each kind of request while the flood was on."""

    unknown: list[TimedReply] = []
    malformed: list[TimedReply] = []
    good: list[TimedReply] = []
    elsewhere: list[TimedReply] = []
    took_s: float = 0.0


def request_bytes(key: str, number: int = 0, address: str = "127.0.0.1") -> bytes:
    """As a proxy forwards it: its connections are shared, so they are not held back after a refusal."""
    line = HEADS[number % len(HEADS)]
    head = f"{line}host: 127.0.0.1\r\nauthorization: Bearer {key}\r\nx-forwarded-for: {address}\r\n\r\n"
    return head.encode() + (BODY if line.startswith("POST") else b"")


async def make_flood(port: int, good_key: str) -> Flood:
    flood, pool, clock = Flood(), ConnectionPool(port), asyncio.get_running_loop().time
    began_s = clock()
    keys = [make_key() for _ in range(UNKNOWN)] + [make_key()[:-1] + "-" for _ in range(MALFORMED)]
    left = iter(enumerate(keys))

    async def send_bad_keys() -> None:
        for number, key in left:
            reply = await pool.ask(request_bytes(key, number))
            (flood.unknown if number < UNKNOWN else flood.malformed).append(reply)

    async def send_good_key() -> None:
        while True:
            flood.good.append(await pool.ask(request_bytes(good_key)))

    async def send_from_elsewhere() -> None:
        for number in range(ELSEWHERE_KEYS):
            flood.elsewhere.append(await pool.ask(request_bytes(make_key(), number, "198.51.100.7")))

    good = asyncio.create_task(send_good_key())
    await asyncio.gather(send_from_elsewhere(), *(send_bad_keys() for _ in range(CONNECTIONS)))
    flood.took_s = clock() - began_s
    good.cancel()
    await asyncio.gather(good, return_exceptions=True)
    pool.close()
    return flood


@pytest.fixture(scope="module")
def flooded(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(ordinary_spec(shared_upstream.base_url)) as running:
        yield running


@pytest.fixture(scope="module")
def flood(flooded: Service) -> Flood:
    """The key of the service was used once before, as by any client that was there."""
    assert RawClient(flooded.port, flooded.key).get("/v1/models").status == 200
    return asyncio.run(make_flood(flooded.port, flooded.key))


def test_flood_is_refused_in_the_error_shape(flood: Flood) -> None:
    """Every unknown key is a 401 or a 429 in the error shape, and each 429 says when to retry."""
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
    """Only as many unknown keys are looked up (401) as the limit of one address allows in that time."""
    looked_up = sum(reply.status == 401 for reply in flood.unknown)
    earned = LOOK_UPS_OF_ONE_ADDRESS.per_s * flood.took_s
    assert LOOK_UPS_OF_ONE_ADDRESS.burst <= looked_up <= LOOK_UPS_OF_ONE_ADDRESS.burst + earned + CONNECTIONS


def test_malformed_key_is_always_401(flood: Flood) -> None:
    """A malformed key is a 401 even in a flood: retrying it later cannot help."""
    assert Counter(reply.status for reply in flood.malformed) == {401: MALFORMED}


def test_good_key_is_served_during_the_flood(flood: Flood) -> None:
    """A known key from the address of the flood is always served, and gets its fair share of the connections' turns."""
    assert {reply.status for reply in flood.good} == {200}
    turns = (UNKNOWN + MALFORMED) / CONNECTIONS  # what each connection of the flood was answered
    assert len(flood.good) > turns / 4


def test_unknown_keys_from_elsewhere_are_401(flood: Flood) -> None:
    """Another address is not limited by the flood: its unknown keys are 401."""
    assert Counter(reply.status for reply in flood.elsewhere) == {401: ELSEWHERE_KEYS}


def test_new_key_is_served_from_elsewhere(flooded: Service, flood: Flood) -> None:
    """A key that was never used before is accepted on its first request from another address."""
    api = RawClient(flooded.port, flooded.create_key())
    assert api.get("/v1/models", {"x-forwarded-for": ELSEWHERE}).status == 200


def test_unknown_key_is_looked_up_after_the_wait(flooded: Service, flood: Flood) -> None:
    """The wait in a 429 is the true one: after it, an unknown key is looked up and is a 401."""

    async def run() -> tuple[TimedReply, TimedReply]:
        pool = ConnectionPool(flooded.port)
        refused = await pool.ask(request_bytes(make_key()))
        while refused.status != 429:
            refused = await pool.ask(request_bytes(make_key()))
        await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000)
        waited = await pool.ask(request_bytes(make_key()))
        pool.close()
        return refused, waited

    refused, waited = asyncio.run(run())
    assert 1 <= int(refused.headers["retry-after-ms"]) <= 1000 / LOOK_UPS_OF_ONE_ADDRESS.per_s
    assert waited.status == 401


def test_service_works_after_the_flood(flooded: Service, flood: Flood, upstream: LoopbackUpstream) -> None:
    """The service is ready, chats are served, and none of the flood's keys was logged."""
    api = RawClient(flooded.port, flooded.key)
    wait_until(lambda: api.get("/readyz").status == 200, "the service being ready")
    assert [api.chat(stream=stream).status for stream in (False, True)] == [200, 200]
    assert "internal error" not in flooded.output
    assert flooded.output.count("sk-cdz-") == 0
