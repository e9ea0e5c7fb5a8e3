"""The limits of a connection: a client has so long for a head, so large a head, and so long to read its reply."""

import asyncio

import pytest

from cadenza.http.connection import ConnectionLimits
from tests.unit.http.raw_client import LAST_CHUNK, WAIT_S, RawClient, request, until
from tests.unit.http.testing_site import PIECE, PIECES, WHOLE, Site, check_malformed, check_served
from tests.unit.upstreams.clock import Clock

SHORT_S = 0.3
STUCK_TURNS = 100
DEFAULTS = ConnectionLimits()
HEAD_BYTES_MAX = DEFAULTS.head_bytes_max
REQUEST = b"GET /quick HTTP/1.1\r\nhost: here\r\n\r\n"
NEXT = request("/whole", request_id="next")


def large_head(
    size_bytes: int, begin: bytes = b"GET /quick HTTP/1.1\r\nhost: h\r\nx-large: ", end: bytes = b"\r\n\r\n"
) -> bytes:
    """A whole head of so many bytes."""
    return begin + b"x" * (size_bytes - len(begin) - len(end)) + end


async def send_and_wait(site: Site, client: RawClient, data: bytes) -> None:
    """Send data on the only connection, and return once the server has received it."""
    await until(lambda: bool(site.connections))
    received_bytes = site.connection.received_bytes
    await client.send(data)
    await until(lambda: not site.connections or site.connection.received_bytes == received_bytes + len(data))


async def until_stuck(site: Site) -> None:
    """Return once the only client has left so much unread that, turn after turn, nothing more can be sent."""
    turns = 0
    while turns < STUCK_TURNS:
        await asyncio.sleep(0)
        turns = turns + 1 if site.connection.is_congested else 0


async def test_a_client_that_does_not_read() -> None:
    """A stream whose client stops reading is interrupted after the unread deadline."""
    async with Site(ConnectionLimits(unread_s=SHORT_S)) as site:
        client = await site.connect()
        await client.send(request("/endless"))
        await client.read_until(b"\r\n\r\n")
        await asyncio.wait_for(site.was_interrupted.wait(), WAIT_S)


async def test_a_client_that_reads_slowly(site: Site, client: RawClient, clock: Clock) -> None:
    """A client that reads slowly but steadily, for longer than the unread deadline, gets the whole reply."""
    await client.send(request("/large", more="connection: close\r\n"))
    size_bytes = len(await client.read_until(b"\r\n\r\n"))
    for _ in range(3):
        await until_stuck(site)
        await clock.leap(DEFAULTS.unread_s / 2)
        resumed = site.connection.resumed
        while site.connection.resumed == resumed:
            size_bytes += len(await client.read_some())
    rest = await client.read_to_end()
    assert rest.endswith(b"done\r\n" + LAST_CHUNK)
    assert size_bytes + len(rest) > len(PIECE) * PIECES


@pytest.mark.parametrize(("count", "size_bytes", "is_read"), [(1900, 1, True), (5000, 20, True), (5000, 1, False)])
async def test_a_body_in_small_chunks(count: int, size_bytes: int, is_read: bool) -> None:
    """Many chunks, or some tiny ones, are a body like any other. Many tiny ones, which hold the loop, are refused."""
    chunks = b"%x\r\n%b\r\n" % (size_bytes, b"x" * size_bytes) * count
    async with Site() as site:
        client = await site.connect()
        await client.send(b"POST /body HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + LAST_CHUNK)
        if is_read:
            assert (await client.reply())[2] == b"x" * count * size_bytes
            await check_served(client)
        else:
            check_malformed(await client.read_to_end())


async def test_a_connection_without_a_request() -> None:
    """A client that connects and sends nothing is closed after the head deadline."""
    async with Site(ConnectionLimits(head_s=SHORT_S)) as site:
        assert await (await site.connect()).read_to_end() == b""


async def test_an_idle_connection() -> None:
    """A connection that is idle after a reply is closed after the keep-alive deadline, and its reply is complete."""
    async with Site(ConnectionLimits(keep_alive_s=SHORT_S)) as site:
        client = await site.connect()
        await client.send(REQUEST)
        assert (await client.read_to_end()).endswith(WHOLE)


@pytest.mark.parametrize("behind", [b"", request("/whole")], ids=["nothing", "a request"])
@pytest.mark.parametrize("partial", [b"", NEXT[:20]], ids=["no head", "part of a head"])
async def test_no_deadline_runs_while_an_exchange_does(
    site: Site, client: RawClient, clock: Clock, behind: bytes, partial: bytes
) -> None:
    """A slow reply is not cut off, even if the head of another request has begun behind it."""
    await send_and_wait(site, client, request("/when-told") + behind + partial)
    await until(lambda: bool(site.paths))
    await clock.leap(10 * DEFAULTS.keep_alive_s)
    site.go_on.set()
    for _ in range(2 if behind else 1):
        assert (await client.reply())[2] == WHOLE
    await client.send(NEXT.removeprefix(partial))
    assert b"x-request-id: next" in (await client.reply())[1]


async def test_a_head_that_began_before_the_last_reply(site: Site, client: RawClient, clock: Clock) -> None:
    """A head that has begun has the time of a head, and not that of an idle connection."""
    await client.send(request("/whole") + NEXT[:20])
    assert (await client.reply())[2] == WHOLE
    await clock.leap(DEFAULTS.head_s + 1)
    assert await client.read_to_end() == b""


@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "second"])
async def test_a_head_that_trickles(site: Site, client: RawClient, clock: Clock, before: bytes) -> None:
    """Bytes that arrive do not extend the head deadline, of the first request or of a later one."""
    await client.send(before)
    if before:
        await client.reply()
    for byte in REQUEST[:9]:
        await send_and_wait(site, client, bytes([byte]))
        await clock.leap(DEFAULTS.head_s / 10)
    assert site.connections
    await clock.leap(DEFAULTS.head_s / 5)
    assert await client.read_to_end() == b""
    assert len(site.paths) == bool(before)


@pytest.mark.parametrize("sent", [b"\r\n", b"\r\n\r\n"])
async def test_line_ends_do_not_keep_a_connection(site: Site, client: RawClient, clock: Clock, sent: bytes) -> None:
    """Line ends after a reply begin no request, and the head deadline closes the connection."""
    await client.send(REQUEST)
    await client.reply()
    await send_and_wait(site, client, sent)
    await clock.leap(DEFAULTS.head_s + 1)
    assert await client.read_to_end() == b""


async def test_an_unwanted_body_does_not_keep_a_connection(site: Site, client: RawClient, clock: Clock) -> None:
    """A body that goes on after its reply, and then stops, leaves the connection to the head deadline."""
    await client.send(b"POST /quick HTTP/1.1\r\nhost: here\r\ncontent-length: 99\r\n\r\nx")
    await client.reply()
    await send_and_wait(site, client, b"x")
    await clock.leap(DEFAULTS.head_s + 1)
    assert await client.read_to_end() == b""


async def test_keep_alive_is_counted_from_the_last_reply(site: Site, client: RawClient, clock: Clock) -> None:
    """Each request gives an idle connection its whole time again."""
    for _ in range(4):
        await check_served(client)
        await clock.leap(DEFAULTS.keep_alive_s - 1)
    assert site.connections
    await clock.leap(2)
    assert await client.read_to_end() == b""


@pytest.mark.parametrize("piece_bytes", [16_384, 131_072], ids=["in pieces", "at once"])
@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "second"])
@pytest.mark.parametrize("is_target", [False, True], ids=["field", "target"])
async def test_a_head_that_is_too_large(
    site: Site, client: RawClient, before: bytes, piece_bytes: int, is_target: bool
) -> None:
    """A head of more than 64 KiB is refused with 400, however it is split, and reaches no application."""
    await client.send(before)
    if before:
        await client.reply()
    size_bytes = HEAD_BYTES_MAX + 32_768
    head = large_head(size_bytes, b"GET /", b" HTTP/1.1\r\nhost: h\r\n\r\n") if is_target else large_head(size_bytes)
    end = asyncio.create_task(client.read_to_end())
    for place in range(0, len(head), piece_bytes):
        await client.send(head[place : place + piece_bytes])
    check_malformed(await end)
    assert len(site.paths) == bool(before)


async def test_heads_within_the_limit(client: RawClient) -> None:
    """Heads of just below 64 KiB are served, one after the other on one connection: the limit is for each."""
    for _ in range(3):
        await client.send(large_head(HEAD_BYTES_MAX - 256))
        assert (await client.reply())[2] == WHOLE


async def test_line_ends_between_requests_are_not_added_up() -> None:
    """A client that ends each body with a line end is served as long as it likes: the limit is for each request."""
    async with Site(ConnectionLimits(head_bytes_max=128)) as site:
        client = await site.connect()
        for _ in range(100):
            await client.send(b"POST /body HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\nbody\r\n")
            assert (await client.reply())[2] == b"body"
