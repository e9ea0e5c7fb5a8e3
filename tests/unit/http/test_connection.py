"""A connection: one exchange at a time in the order of the requests, bodies of every kind, and when it closes."""

import asyncio
import weakref

import pytest

from cadenza.http.body import BodyLimits
from cadenza.http.connection import Connection, ConnectionLimits, ConnectionSettings
from cadenza.http.connections import Connections
from cadenza.http.exchange import Exchange
from tests.unit.http.raw_client import LAST_CHUNK, RawClient, request, until
from tests.unit.http.testing_site import WHOLE, Site, check_malformed, check_served, disconnect

LONG_S = 600.0
READ_BYTES = 256 * 1024  # the most that a loop reads from a socket at once
LARGE = b"a large body " * 700_000
CHUNKED = b"POST /body HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
NEXT = request("/whole", request_id="next")
NOT_HTTP = b"\x00\x01 no request\r\n\r\n"


async def test_a_request_waits_for_the_reply_before_it(site: Site, client: RawClient) -> None:
    """While an exchange runs, no later request is begun; then they are served in their order."""
    later = [request("/body", b"one", request_id="r-2"), request("/stream", request_id="r-3"), NEXT]
    await client.send(request("/when-told") + b"".join(later))
    await until(lambda: bool(site.paths))
    assert site.paths == ["/when-told"]
    site.go_on.set()
    for request_id in (b"r-1", b"r-2", b"r-3", b"next"):
        status_line, lines, _ = await client.reply()
        assert status_line == b"HTTP/1.1 200 OK"
        assert b"x-request-id: " + request_id in lines
    assert site.paths == ["/when-told", "/body", "/stream", "/whole"]


async def test_nothing_is_read_while_a_request_waits(site: Site, client: RawClient) -> None:
    """A client that goes on sending while a reply is slow is read no further; later all of it is answered."""
    await client.send(request("/when-told"))
    client.start_sending(request("/body", LARGE, request_id="r-2") * 2 + NEXT)
    await until(lambda: bool(site.connections) and not site.connection.is_reading)
    assert site.connection.received_bytes < 2 * READ_BYTES
    site.go_on.set()
    bodies = [(await client.reply())[2] for _ in range(4)]
    assert bodies == [WHOLE, LARGE, LARGE, WHOLE]


async def test_an_unread_body_is_not_read_beyond_the_limit(site: Site, client: RawClient) -> None:
    """Past 64 KiB the server stops reading until the application wants the body, and then reads all of it."""
    client.start_sending(request("/body-when-told", LARGE))
    await until(lambda: bool(site.connections) and not site.connection.is_reading)
    assert site.connection.received_bytes <= BodyLimits().unread_bytes_max + READ_BYTES
    site.go_on.set()
    assert (await client.reply())[2] == LARGE
    await check_served(client)


@pytest.mark.parametrize("size_bytes", [100, 1_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_reply_before_the_whole_body(client: RawClient, size_bytes: int, is_chunked: bool) -> None:
    """Where the reply does not wait for the body, the rest of it is discarded, and the next request is served."""
    body = b"x" * size_bytes
    sent = request("/whole", body)
    if is_chunked:
        sent = CHUNKED.replace(b"/body", b"/whole") + b"%x\r\n%b\r\n" % (size_bytes, body) + LAST_CHUNK
    await client.send(sent[:200])
    assert (await client.reply())[2] == WHOLE
    await client.send(sent[200:])
    await check_served(client)


@pytest.mark.parametrize(
    "before", [request("/body", b"x" * 100_000), request("/no-content") * 2000], ids=["large", "many"]
)
async def test_a_head_that_begins_behind_other_bytes(client: RawClient, before: bytes) -> None:
    """Bytes before a head, in the same read, do not count towards its limit."""
    await client.send(before + NEXT[:20])
    for _ in range(before.count(b"POST")):
        await client.reply()
    await client.send(NEXT[20:])
    status_line, lines, _ = await client.reply()
    assert status_line == b"HTTP/1.1 200 OK"
    assert b"x-request-id: next" in lines


@pytest.mark.parametrize(
    ("path", "received"), [("/raise", b""), ("/no-reply", b""), ("/raise-in-stream", b"3\r\none\r\n")]
)
async def test_an_exchange_without_a_complete_reply(site: Site, path: str, received: bytes) -> None:
    """Where the application raises, or returns without a complete reply, the connection is aborted; others go on."""
    client, other = await site.connect(), await site.connect()
    await check_served(other)
    await client.send(request(path) + NEXT)
    assert (await client.read_to_end()).partition(b"\r\n\r\n")[2] == received
    await check_served(other)
    await until(lambda: len(site.connections) == 1)
    assert site.paths == ["/whole", path, "/whole"]


async def test_malformed_bytes_behind_waiting_requests(site: Site, client: RawClient) -> None:
    """Requests before malformed bytes are served, and those behind them are not."""
    await client.send(request("/when-told") + NEXT + NOT_HTTP + NEXT)
    site.go_on.set()
    assert [(await client.reply())[2] for _ in range(2)] == [WHOLE, WHOLE]
    check_malformed(await client.read_to_end())
    await until(lambda: site.is_quiet)
    assert site.paths == ["/when-told", "/whole"]


async def test_malformed_bytes_during_a_stream(site: Site, client: RawClient) -> None:
    """A stream that has begun is completed before the bytes behind its request are refused."""
    await client.send(request("/stream-when-told"))
    head = await client.read_until(b"\r\n\r\n")
    await client.send(NOT_HTTP)
    site.go_on.set()
    stream, end, refusal = (await client.read_to_end()).partition(LAST_CHUNK)
    assert (head.count(b"HTTP/1.1"), stream.count(b"HTTP/1.1"), end) == (1, 0, LAST_CHUNK)
    check_malformed(refusal)


async def test_bytes_behind_the_last_request_are_discarded(site: Site, client: RawClient) -> None:
    """After `connection: close` the server discards what comes, and the reply is not disturbed by it."""
    await client.send(request("/when-told", more="connection: close\r\n"))
    await client.send(NEXT + NOT_HTTP)
    site.go_on.set()
    assert (await client.reply())[::2] == (b"HTTP/1.1 200 OK", WHOLE)
    assert await client.read_to_end() == b""
    assert site.paths == ["/when-told"]


@pytest.mark.parametrize("end", [b"0\r\nx-late: ", b"5;"], ids=["trailer", "extension"])
async def test_trailers_and_chunk_extensions_are_bounded(client: RawClient, end: bytes) -> None:
    """A trailer or a chunk extension without end is refused when it is too large."""
    await client.send(CHUNKED + b"3\r\none\r\n" + end)
    reading = asyncio.create_task(client.read_to_end())
    for _ in range(32):
        await client.send(b"x" * 32_768)
    check_malformed(await reading)


@pytest.mark.parametrize("behind", [b"", NEXT, request("/body", b"x" * 100_000)[:-1]])
async def test_shut_lets_the_running_exchange_end(site: Site, client: RawClient, behind: bytes) -> None:
    """A connection that is shut closes after the running reply; requests that wait or come later are dropped."""
    await client.send(request("/when-told") + behind)
    await until(lambda: bool(site.paths))
    site.connection.shut()
    await client.send(behind[-1:] + NEXT)
    site.go_on.set()
    _, lines, body = await client.reply()
    assert (b"connection: close" in lines, body) == (True, WHOLE)
    assert await client.read_to_end() == b""
    assert site.paths == ["/when-told"]


async def test_shut_lets_a_body_arrive(site: Site, client: RawClient) -> None:
    """A request whose body is still arriving when its connection is shut is answered."""
    await client.send(request("/body", b"a body").removesuffix(b"body"))
    await until(lambda: bool(site.paths))
    site.connection.shut()
    await client.send(b"body" + NEXT)
    assert (await client.reply())[2] == b"a body"
    assert await client.read_to_end() == b""
    assert site.paths == ["/body"]


async def test_shut_closes_an_idle_connection(site: Site, client: RawClient) -> None:
    """A connection without an exchange, new or used, closes at once; to shut it again has no effect."""
    await check_served(client)
    used = site.connection
    used.shut()
    used.shut()
    assert await client.read_to_end() == b""
    await until(lambda: not site.connections)
    used.shut()
    new_client = await site.connect()
    await until(lambda: bool(site.connections))
    site.connection.shut()
    assert await new_client.read_to_end() == b""


async def test_a_lost_connection_is_freed() -> None:
    """Nothing keeps a connection in memory once its client is gone and its exchange has ended: it is in no cycle."""
    async with Site(ConnectionLimits(head_s=LONG_S, keep_alive_s=LONG_S)) as site:
        client = await site.connect()
        await check_served(client)
        await client.send(request("/reply-then-work"))
        await client.reply()
        connection = weakref.ref(site.connection)
        await disconnect(client, site)
        site.go_on.set()
        await until(lambda: site.is_quiet)
        site.exchanges.clear()
        site.tasks.clear()
        await until(lambda: connection() is None)


async def test_a_lost_connection_is_not_congested() -> None:
    """A connection that is lost while the client does not read keeps nobody waiting."""

    async def serve(_exchange: Exchange) -> None:
        """Nothing is asked."""

    connection = Connection(serve, ConnectionSettings(), Connections())
    connection.connection_made(asyncio.Transport())
    connection.pause_writing()
    was_congested = connection.is_congested
    connection.connection_lost(None)
    assert (was_congested, connection.is_congested) == (True, False)
    await connection.drain()
