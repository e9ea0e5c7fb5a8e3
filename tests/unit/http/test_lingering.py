"""The lingering close: a client that still sends when it is refused gets its reply, within limits."""

import asyncio
import json

from cadenza.http.body import BodyLimits
from cadenza.http.connection import ConnectionLimits
from cadenza.http.connections import ConnectionsLimits
from tests.unit.http.raw_client import WAIT_S, RawClient, request, until
from tests.unit.http.testing_site import MALFORMED_BODY, WHOLE, Site, check_served
from tests.unit.upstreams.clock import Clock

KIB = 1024
LIMITS = ConnectionLimits()
SMALL = BodyLimits(rest_bytes_max=64 * KIB)
LARGE_HEAD = request("/whole", b"x" * 512 * KIB)[: -512 * KIB]
CHUNKED = b"POST /whole HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"


async def refused(site: Site) -> RawClient:
    """A client that was refused before its large body, and has read the reply."""
    client = await site.connect()
    await client.send(LARGE_HEAD)
    _, lines, body = await client.reply()
    assert (b"connection: close" in lines, body) == (True, WHOLE)
    assert await client.read_to_end() == b""
    return client


async def test_the_reply_arrives_though_the_client_sends_on() -> None:
    """A client that sends its whole body before it reads gets the reply; then the server's side is closed."""
    async with Site(body_limits=SMALL) as site:
        client = await site.connect()
        for part in (LARGE_HEAD, *[b"x" * 64 * KIB] * 8):
            await client.send(part)
        assert (await client.reply())[2] == WHOLE
        assert await client.read_to_end() == b""
        client.abort()
        await until(lambda: not len(site.connections))


async def test_a_small_rest_keeps_the_connection() -> None:
    """A rest within the limit is read and discarded, and the next request is served."""
    async with Site(body_limits=SMALL) as site:
        client = await site.connect()
        body = b"x" * 60 * KIB
        await client.send(request("/whole", body)[: -len(body)])
        assert b"connection: close" not in (await client.reply())[1]
        await client.send(body)
        await check_served(client)


async def test_chunks_without_end_behind_a_reply() -> None:
    """A body of unknown length that nobody wants is discarded up to the limit; then the server's side is closed."""
    async with Site(ConnectionLimits(head_s=10 * WAIT_S), SMALL) as site:
        client = await site.connect()
        await client.send(CHUNKED)
        assert b"connection: close" not in (await client.reply())[1]
        for _ in range(8):
            await client.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        assert await client.read_to_end() == b""
        assert len(site.paths) == 1


async def test_a_refusal_of_malformed_bytes_lingers() -> None:
    """A client that sends on behind malformed bytes gets the 400."""
    async with Site() as site:
        client = await site.connect()
        client.start_sending(b"GET  / HTTP/1.1\r\nhost: h\r\n\r\n" + b"x" * 512 * KIB)
        _, _, body = await client.reply()
        assert json.loads(body) == json.loads(MALFORMED_BODY)
        assert await client.read_to_end() == b""


async def test_lingering_is_bounded_in_bytes() -> None:
    """After so many bytes the connection is closed, though the client sends on."""
    async with Site(ConnectionLimits(linger_bytes_max=128 * KIB), SMALL) as site:
        client = await refused(site)
        sent_bytes, received_bytes = 0, site.connection.received_bytes
        while len(site.connections):
            assert sent_bytes < 2048 * KIB
            await client.send(b"x" * 16 * KIB)
            sent_bytes += 16 * KIB
            arrived = received_bytes + sent_bytes
            await until(lambda sent=arrived: not site.connections or site.connection.received_bytes == sent)  # type: ignore[misc]
        assert sent_bytes > 128 * KIB


async def test_lingering_is_bounded_in_silence(clock: Clock) -> None:
    """A client that neither sends nor closes is closed after a short while."""
    async with Site(body_limits=SMALL) as site:
        await refused(site)
        await clock.leap(LIMITS.linger_silence_s - 1)
        assert len(site.connections) == 1
        await clock.leap(2)
        await until(lambda: not len(site.connections))


async def test_lingering_is_bounded_in_time(clock: Clock) -> None:
    """A client that goes on sending a little is closed after the whole time."""
    async with Site(body_limits=SMALL) as site:
        client = await refused(site)
        leaps = 0
        while len(site.connections):
            received_bytes = site.connection.received_bytes
            await client.send(b"x")
            await until(lambda before=received_bytes: site.connection.received_bytes > before)  # type: ignore[misc]
            await clock.leap(LIMITS.linger_silence_s - 1)
            await asyncio.sleep(0)
            leaps += 1
            assert leaps < 20
        assert leaps * (LIMITS.linger_silence_s - 1) >= LIMITS.linger_s


async def test_few_connections_linger() -> None:
    """When all places are taken, a connection is closed at once."""
    async with Site(body_limits=SMALL, connections_limits=ConnectionsLimits(lingering_max=1)) as site:
        first = await refused(site)
        await refused(site)
        await until(lambda: len(site.connections) == 1)
        await first.send(b"x")
        assert len(site.connections) == 1
