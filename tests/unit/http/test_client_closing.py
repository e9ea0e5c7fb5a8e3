"""The HTTP client closes its connections however a request ends, and applies backpressure."""

import asyncio
import contextlib
import gc
import hashlib
import math
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import BUFFER_BYTES_MAX, ClientConnection
from tests.unit.http.peer import (
    LOCALHOST,
    Peer,
    Visit,
    WholeResponse,
    always,
    client_leaves,
    client_of,
    fetch,
    full_listener,
    happens,
    no_files_left,
    read_all,
    read_part,
    talking,
)
from tests.unit.http.raw_client import WAIT_S, until

MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
SECOND = OK + b"content-length: 6\r\n\r\nsecond"

UNDER_WAY = {
    "waiting for a response": b"",
    "inside the head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "after an interim response": b"HTTP/1.1 100 Continue\r\n\r\n",
    "before the body": OK + b"content-length: 9\r\n\r\n",
    "inside a body with a length": OK + b"content-length: 9\r\n\r\nhalf",
    "inside a chunk": CHUNKED + b"9\r\nhalf",
    "between chunks": CHUNKED + b"4\r\nhalf\r\n",
    "inside a body without a length": OK + b"\r\nhalf",
}


def open_sockets() -> int:
    return sum(is_socket(int(entry.name)) for entry in Path("/dev/fd").iterdir())


def is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # it was closed since it was listed, as that of the listing itself
        return False


async def closed_again(open_before: int) -> None:
    await until(lambda: open_sockets() <= open_before)


async def end_by_cancelling(task: asyncio.Task[WholeResponse]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("sent", UNDER_WAY.values(), ids=UNDER_WAY)
async def test_cancelling_closes_the_connection_at_once(sent: bytes) -> None:
    """A request that is cancelled at any point of its response closes its connection at once."""
    is_under_way = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        if visit.number:
            await visit.say(HI)
        await visit.say(sent)
        is_under_way.set()
        await visit.until_left()

    async with talking(script) as (client, peer):
        task = asyncio.create_task(fetch(client))
        await happens(is_under_way)
        await end_by_cancelling(task)
        await client_leaves(peer)
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


async def test_cancelling_while_a_request_is_sent_closes_the_connection() -> None:
    """A request whose body the upstream does not read is given up at once, with the rest of its body."""
    is_under_way = asyncio.Event()

    async def script(visit: Visit) -> None:
        visit.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a transport of both directions
        is_under_way.set()
        await go_on.wait()
        visit.writer.transport.resume_reading()  # type: ignore[attr-defined]
        taken = await visit.reader.read(64 * MIB)
        while part := await visit.reader.read(64 * MIB):
            taken += part
        assert len(taken) < 32 * MIB
        visit.left.set()

    go_on = asyncio.Event()
    async with talking(script) as (client, peer):
        task = asyncio.create_task(fetch(client, body=bytes(32 * MIB)))
        await happens(is_under_way)
        await end_by_cancelling(task)
        go_on.set()
        await client_leaves(peer)


async def test_cancelling_while_connecting_leaves_no_socket() -> None:
    """A request that is cancelled before its connection is made leaves no socket open."""
    with full_listener() as port:
        async with client_of(f"http://{LOCALHOST}:{port}/v1") as client:
            open_before = open_sockets()
            task = asyncio.create_task(fetch(client))
            await until(lambda: open_sockets() > open_before)
            await end_by_cancelling(task)
            await closed_again(open_before)


async def test_a_connection_that_takes_too_long_is_given_up() -> None:
    """A peer that does not accept the connection in time is Unreachable, and the socket is closed."""
    with full_listener() as port:
        async with client_of(f"http://{LOCALHOST}:{port}/v1") as client:
            open_before = open_sockets()
            with pytest.raises(Unreachable):
                await fetch(client, connect_s=0.05)
            await closed_again(open_before)


@pytest.mark.parametrize("host", [LOCALHOST, "localhost"])
async def test_running_out_of_files_is_our_own_fault(host: str) -> None:
    """A connection that cannot be made because this process has no file left is told apart; others come and go."""
    async with Peer(always(HI)) as peer, client_of(f"http://{host}:{peer.port}/v1") as client:
        with no_files_left(), pytest.raises(OutOfResources):
            await fetch(client)
        assert (await fetch(client)).body == b"hi"


async def end_at_once(client: HttpClient) -> None:
    async with client.request("POST", "/", b"", WAIT_S):
        pass


async def end_after_a_part(client: HttpClient) -> None:
    async with client.request("POST", "/", b"", WAIT_S) as response:
        assert await read_part(response) == b"half"


async def end_by_an_error(client: HttpClient) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with client.request("POST", "/", b"", WAIT_S):
            raise ZeroDivisionError


@pytest.mark.parametrize("end", [end_at_once, end_after_a_part, end_by_an_error])
async def test_ending_a_request_early_closes_its_connection(
    end: Callable[[HttpClient], Coroutine[None, None, None]],
) -> None:
    """A request that ends before its response is complete closes its connection at once."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(CHUNKED + b"4\r\nhalf")
        await visit.until_left()

    async with talking(script) as (client, peer), asyncio.timeout(WAIT_S):
        await end(client)
        await client_leaves(peer)


async def test_an_unread_response_closes_its_connection() -> None:
    """A response that arrived but was not read is never left for the next request."""
    has_come = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI)
        has_come.set()
        await visit.until_left()

    async with talking(script) as (client, peer), asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S):
            await has_come.wait()
        await client_leaves(peer)


async def test_a_response_read_to_its_last_byte_keeps_the_connection() -> None:
    """A response whose every byte was read is over, whether or not its reader asked for more."""
    async with talking(always(HI)) as (client, peer), asyncio.timeout(WAIT_S):
        for _ in range(2):
            async with client.request("POST", "/", b"", WAIT_S) as response:
                assert await read_part(response) == b"hi"
        assert peer.requests_per_visit == [2]


async def is_stuck(visit: Visit) -> bool:
    """Whether the client leaves something unread, however often the loop gives it the chance to read."""
    for _ in range(50):
        if not visit.writer.transport.get_write_buffer_size():
            return False
        await asyncio.sleep(0.005)
    return True


async def test_nothing_is_read_ahead_of_the_reader() -> None:
    """While nothing is received, the upstream can send only a bounded amount; then all of it arrives."""
    block, blocks = bytes(range(256)) * 256, 512
    sent_bytes, has_stalled = 0, asyncio.Event()

    async def script(visit: Visit) -> None:
        nonlocal sent_bytes
        visit.writer.transport.set_write_buffer_limits(0)
        visit.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(block))
        await visit.request()
        await visit.say(OK + b"content-length: %d\r\n\r\n" % (len(block) * blocks))
        for _ in range(blocks):
            visit.writer.write(block)
            if not has_stalled.is_set() and await is_stuck(visit):
                has_stalled.set()
            await visit.writer.drain()
            sent_bytes += len(block)
        await visit.request()
        await visit.say(SECOND)

    async with talking(script) as (client, peer), asyncio.timeout(4 * WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            await happens(has_stalled)
            assert BUFFER_BYTES_MAX <= sent_bytes <= BUFFER_BYTES_MAX + 8 * MIB
            first = await read_part(response)
            assert first
            assert len(first) <= 2 * BUFFER_BYTES_MAX
            body = first + await read_all(response)
            assert hashlib.sha256(body).digest() == hashlib.sha256(block * blocks).digest()
        assert (await fetch(client)).body == b"second"
        assert peer.requests_per_visit == [2]


async def test_a_large_request_to_a_slow_upstream() -> None:
    """A body of 32 MiB, in pieces, arrives whole at a peer that reads it in small parts, and the response follows."""
    body = os.urandom(MIB) * 32
    taken = hashlib.sha256()

    async def script(visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        left_bytes = len(body)
        while left_bytes:
            part = await visit.reader.read(256 * 1024)
            taken.update(part)
            left_bytes -= len(part)
            await asyncio.sleep(0)
        await visit.say(HI)

    async with asyncio.timeout(4 * WAIT_S), talking(script) as (client, _peer):
        response = await client.send(client.head("POST", "/"), [body[:100], memoryview(body)[100:]], WAIT_S)
        assert await read_all(response) == b"hi"
        client.release(response)
    assert taken.digest() == hashlib.sha256(body).digest()


async def test_a_response_before_the_request_was_read() -> None:
    """A response that comes before the request was sent counts, but the connection is not used again."""

    async def script(visit: Visit) -> None:
        if visit.number:
            return await always(SECOND)(visit)
        await visit.reader.readuntil(b"\r\n\r\n")
        visit.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a transport of both directions
        await visit.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await is_over.wait()
        return None

    is_over = asyncio.Event()
    async with talking(script) as (client, _peer):
        assert (await fetch(client, body=bytes(32 * MIB))).status == 413
        assert (await fetch(client)).body == b"second"
        is_over.set()


async def test_an_upstream_that_closes_amid_a_large_request() -> None:
    """A response that came before the upstream closed on the rest of the request is not lost."""

    async def script(visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        await visit.say(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 9\r\n\r\ntoo large")

    async with talking(script) as (client, peer):
        response = await fetch(client, body=bytes(32 * MIB))
        assert (response.status, response.body) == (413, b"too large")
        assert len(peer.visits) == 1


async def test_a_large_request_is_cancelled_as_its_connection_ends() -> None:
    """Neither end leaves an error that asyncio would report."""
    loop, reports = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    ours, theirs = socket.socketpair()
    with theirs:
        transport, connection = await loop.create_connection(ClientConnection, sock=ours)
        sending = asyncio.create_task(connection.send_large(b"head", [bytes(8 * MIB)], math.inf))
        await asyncio.sleep(0)
        transport.abort()
        loop.call_soon(sending.cancel)  # right after the connection hears of its end
        await asyncio.wait([sending])
    assert sending.cancelled()
    del sending, connection
    gc.collect()
    assert reports == []


async def test_unreachable_carries_no_address() -> None:
    """The exception has no text and no cause that would show an address in a log."""
    async with client_of("http://no-such-host.invalid/v1") as client:
        with pytest.raises(Unreachable) as failure:
            await fetch(client)
    assert (str(failure.value), failure.value.__cause__, failure.value.__suppress_context__) == ("", None, True)
