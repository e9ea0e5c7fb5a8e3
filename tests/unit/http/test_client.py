"""The HTTP client: what it sends, how it reads a response, and when it keeps a connection for the next request."""

import asyncio
import json
import math
import socket

import pytest

from cadenza.http.client import PRUNE_S
from cadenza.http.client_connection import HEAD_BYTES_MAX, IDLE_S_MAX, Broken, ClientConnection, Unanswered
from tests.unit.http.peer import (
    LOCALHOST,
    Peer,
    Script,
    Visit,
    always,
    client_leaves,
    client_of,
    fetch,
    happens,
    read_all,
    read_part,
    responding,
    talking,
)
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.clock import Clock

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
EMPTY = b"content-length: 0\r\n\r\n"


async def test_a_request_on_the_wire() -> None:
    """A request has its method, the path of the base address, the given headers and the length of its body."""
    async with talking(always(HI)) as (client, peer):
        await fetch(client, "/chat/completions", b"a body")
        (request,) = peer.visits[0].requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", b"a body")
    assert request.headers == {
        "host": f"{LOCALHOST}:{peer.port}",
        "user-agent": "cadenza",
        "accept-encoding": "identity",
        "x-given": "as it is",
        "content-length": "6",
    }


async def test_a_base_address_may_end_with_a_slash() -> None:
    """A slash at the end of the base address does not become a second one."""
    async with Peer(always(HI)) as peer, client_of(f"{peer.url}/") as client:
        await fetch(client, "/models")
        assert peer.visits[0].requests[0].path == "/v1/models"


async def test_an_address_of_ipv6() -> None:
    """A numeric IPv6 address is reached, and stands in brackets in the Host header."""
    if not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback")
    async with Peer(always(HI), host="::1") as peer, client_of(peer.url) as client:
        assert (await fetch(client)).body == b"hi"
        assert peer.visits[0].requests[0].headers["host"] == f"[::1]:{peer.port}"


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


KEPT = {
    "length": (HI, 200, b"hi"),
    "empty": (OK + EMPTY, 200, b""),
    "no reason phrase": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi"),
    "chunks": (CHUNKED + b"2\r\nhi\r\n6\r\n there\r\n0\r\n\r\n", 200, b"hi there"),
    "chunk extensions and trailers": (CHUNKED + b"2;a=b\r\nhi\r\n0\r\nx-late: 1\r\n\r\n", 200, b"hi"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "304 with the length of what it does not send": (b"HTTP/1.1 304 X\r\ncontent-length: 99\r\n\r\n", 304, b""),
    "100 before it": (b"HTTP/1.1 100 Continue\r\n\r\n" + HI, 200, b"hi"),
    "103 twice before it": (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\ncontent-length: 9\r\n\r\n" * 2 + HI,
        200,
        b"hi",
    ),
    "HTTP/1.0 that stays": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi"),
    "an upgrade that is only offered": (OK + b"upgrade: h2c\r\nconnection: upgrade\r\n" + HI[len(OK) :], 200, b"hi"),
    "a teapot": (b"HTTP/1.1 418 Teapot\r\ncontent-length: 5\r\n\r\nshort", 418, b"short"),
}


@pytest.mark.parametrize(("reply", "status", "body"), KEPT.values(), ids=KEPT)
async def test_a_connection_is_kept_after_a_complete_response(reply: bytes, status: int, body: bytes) -> None:
    """However a response is framed, it is read to its end, and the connection serves the next request."""
    async with talking(always(reply)) as (client, peer):
        for _ in range(3):
            response = await fetch(client)
            assert (response.status, response.body) == (status, body)
        assert peer.requests_per_visit == [3]


NOT_KEPT = {
    "announced": (OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "announced in capitals": (OK + b"Connection: Close\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "announced, in chunks": (
        OK + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"hi",
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "no length": (OK + b"\r\nhi there", b"hi there"),
    "no length and empty": (OK + b"\r\n", b""),
    "no length but closing": (OK + b"connection: close\r\n\r\n{}", b"{}"),
}


@pytest.mark.parametrize(("reply", "body"), NOT_KEPT.values(), ids=NOT_KEPT)
async def test_a_response_that_ends_with_its_connection(reply: bytes, body: bytes) -> None:
    """A response that announces the close, or has no length, is complete; the next request needs a new connection."""
    async with talking(responding(reply)) as (client, peer):
        for _ in range(2):
            response = await fetch(client)
            assert (response.status, response.body) == (200, body)
        assert peer.requests_per_visit == [1, 1]


@pytest.mark.parametrize("reply", [reply for reply, _ in NOT_KEPT.values() if reply[-2:] == b"hi"])
async def test_an_announced_close_is_done_by_us(reply: bytes) -> None:
    """Where the upstream announces that it closes, and waits, we close the connection after the response."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(reply)
        await visit.until_left()

    async with talking(script) as (client, peer):
        assert (await fetch(client)).body == b"hi"
        await client_leaves(peer)


async def test_a_body_without_a_length_that_is_reset_is_broken() -> None:
    """A reset is not the end of a body that ends with its connection."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK + b"\r\nhalf of")
        visit.reset()

    async with talking(script) as (client, _peer):
        with pytest.raises(Broken):
            await fetch(client)


async def test_headers_are_those_of_the_response_itself() -> None:
    """Headers of an interim response, of a trailer or of the exchange before are not kept."""
    interim = b"HTTP/1.1 103 Early Hints\r\nx-hint: 1\r\n\r\n"
    chunked = OK + b"x-own: yes\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-own: no\r\nx-late: 1\r\n\r\n"
    async with talking(responding(OK + b"x-before: 1\r\n" + EMPTY, interim + chunked, HI)) as (client, _peer):
        await fetch(client)
        assert (await fetch(client)).headers == {b"x-own": b"yes", b"transfer-encoding": b"chunked"}
        assert (await fetch(client)).headers == {b"content-length": b"2"}


SHORT = {
    "length": OK + b"content-length: 9\r\n\r\nhalf",
    "chunk": CHUNKED + b"9\r\nhalf",
    "between chunks": CHUNKED + b"4\r\nhalf\r\n",
    "after the last chunk": CHUNKED + b"4\r\nhalf\r\n0\r\n",
    "garbage for a chunk": CHUNKED + b"4\r\nhalf\r\nnonsense\r\n",
}


@pytest.mark.parametrize("reply", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_truncated_response_is_broken(reply: bytes, ending: str) -> None:
    """What arrived is handed out, then Broken is raised: a truncated body never looks complete."""
    read_half = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(reply)
        await read_half.wait()
        if ending == "reset":
            visit.reset()

    async with (
        asyncio.timeout(WAIT_S),
        talking(script) as (client, _peer),
        client.request("POST", "/", b"", WAIT_S) as response,
    ):
        assert await read_part(response) == b"half"
        read_half.set()
        with pytest.raises(Broken):
            await read_part(response)


EXTRA = {
    "garbage": b"extra",
    "the beginning of a response": b"HTTP",
    "a whole second response": b"HTTP/1.1 500 Oops\r\nx-second: 1\r\ncontent-length: 3\r\n\r\nbad",
    "an interim response": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "at once"])
@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA)
async def test_bytes_behind_a_response_end_the_connection(extra: bytes, apart: bool) -> None:
    """A response is as long as its framing says; bytes behind it are never taken for the next response."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*([HI, extra] if apart else [HI + extra]))
        await visit.until_left()

    async with talking(script) as (client, peer):
        for number in range(2):
            response = await fetch(client)
            assert (response.status, response.headers, response.body) == (200, {b"content-length": b"2"}, b"hi")
            await happens(peer.visits[number].left)
        assert peer.requests_per_visit == [1, 1]


NOT_HTTP = {
    "a banner": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "HTML": b"<html><body>nginx</body></html>",
    "zeros": bytes(100),
    "HTTP of another age": b"HTTP/2 200\r\ncontent-length: 2\r\n\r\nhi",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a negative length": OK + b"content-length: -2\r\n\r\nhi",
    "a length that is no number": OK + b"content-length: two\r\n\r\nhi",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi",
    "a length and chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "a header without a colon": OK + b"header\r\n\r\n",
    "a null in a header": OK + b"x-null: \0\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "an upgrade out of the blue": b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello",
}


@pytest.mark.parametrize("sent", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_not_http_is_broken(sent: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are not an HTTP/1.1 response raise Broken at once; the connection is closed and nothing is logged."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(sent)
        await visit.until_left()

    async with talking(script) as (client, peer):
        with pytest.raises(Broken) as failure:
            await fetch(client)
        assert not isinstance(failure.value, Unanswered)
        await client_leaves(peer)
        assert peer.requests_per_visit == [1]
    assert capsys.readouterr().err == ""


ENDLESS = {
    "headers": (OK, b"x-more: and more\r\n" * 50),
    "one header": (OK + b"x-long: ", b"long" * 250),
    "a reason phrase": (b"HTTP/1.1 200 ", b"very " * 200),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "empty lines": (b"", b"\r\n" * 500),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\n", b"x-more: and more\r\n" * 50),
}


@pytest.mark.parametrize(("begin", "more"), ENDLESS.values(), ids=ENDLESS)
async def test_overhead_is_bounded(begin: bytes, more: bytes) -> None:
    """Bytes that are not body are bounded: past the limit Broken is raised and the connection closed."""
    sent_bytes = 0

    async def script(visit: Visit) -> None:
        nonlocal sent_bytes
        await visit.request()
        await visit.say(begin)
        while sent_bytes < 64 * HEAD_BYTES_MAX:
            await visit.say(more)
            sent_bytes += len(more)
        await visit.until_left()

    async with talking(script) as (client, peer):
        with pytest.raises(Broken):
            await fetch(client)
        await client_leaves(peer)
    assert HEAD_BYTES_MAX / 2 < sent_bytes < 64 * HEAD_BYTES_MAX


async def test_a_large_head_within_the_limit() -> None:
    """A head just below the limit is read."""
    fields = b"".join(b"x-%d: %s\r\n" % (number, b"v" * 1000) for number in range(60))
    assert len(fields) < HEAD_BYTES_MAX
    async with talking(always(OK + fields + EMPTY)) as (client, _peer):
        assert len((await fetch(client)).headers) == 61


async def test_a_body_is_handed_out_as_it_arrives() -> None:
    """Each part of a body reaches the receiver before the next one is sent."""
    was_read = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(CHUNKED)
        for part in (b"one", b"two", b"six"):
            await visit.say(b"3\r\n%b\r\n" % part)
            await was_read.wait()
            was_read.clear()
        await visit.say(b"0\r\n\r\n")

    async with (
        asyncio.timeout(WAIT_S),
        talking(script) as (client, _peer),
        client.request("POST", "/", b"", WAIT_S) as response,
    ):
        for part in (b"one", b"two", b"six"):
            assert await read_part(response) == part
            was_read.set()
        assert await read_part(response) is None
        assert await read_part(response) is None


async def test_an_idle_connection_that_was_closed_is_not_used() -> None:
    """After the upstream closed an idle connection, the next request is sent once, on a new one."""
    async with talking(responding(HI)) as (client, peer), asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            assert await read_all(response) == b"hi"
        await until(lambda: not response.is_usable())
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


def closing_at_the_second_request(last_bytes: bytes, ending: str = "close", visits: int = 1) -> Script:
    """The first connections respond once and close at their second request; later ones always respond."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI)
        await visit.request()
        if visit.number < visits:
            await visit.say(last_bytes)
            if ending == "reset":
                visit.reset()
        else:
            await visit.say(HI)

    return script


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_request_on_a_connection_just_closed_is_sent_again(ending: str) -> None:
    """Where a kept connection closes without a byte of a response, the request is sent again on a new one."""
    async with talking(closing_at_the_second_request(b"", ending)) as (client, peer):
        await fetch(client, body=b"first")
        assert (await fetch(client, body=b"second")).body == b"hi"
        assert peer.requests_per_visit == [2, 1]
        assert peer.visits[1].requests[0].body == b"second"


async def test_only_one_idle_connection_is_tried() -> None:
    """However many idle connections have gone stale, a request is sent twice at most, then on a new connection."""
    async with talking(closing_at_the_second_request(b"", visits=3)) as (client, peer):
        await asyncio.gather(*(fetch(client) for _ in range(3)))
        assert peer.requests_per_visit == [1, 1, 1]
        assert (await fetch(client)).body == b"hi"
        assert sorted(peer.requests_per_visit) == [1, 1, 1, 2]


async def test_a_new_connection_is_tried_only_once() -> None:
    """A new connection that closes without a response raises Unanswered: the request is not sent again."""
    async with talking(responding()) as (client, peer):
        with pytest.raises(Unanswered):
            await fetch(client)
        assert len(peer.visits) == 1


@pytest.mark.parametrize("last_bytes", [b"H", b"HTTP/1.1 200 OK\r\n", OK + b"content-length: 2\r\n\r\n"])
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_after_a_byte_of_a_response_nothing_is_sent_again(last_bytes: bytes, ending: str) -> None:
    """An upstream that has begun to respond has the request: it is never sent a second time."""
    async with talking(closing_at_the_second_request(last_bytes, ending)) as (client, peer):
        await fetch(client)
        with pytest.raises(Broken) as failure:
            await fetch(client)
        assert not isinstance(failure.value, Unanswered)
        assert peer.requests_per_visit == [2]


@pytest.mark.parametrize("sent", [b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"\r\n", b"\0"])
async def test_bytes_on_an_idle_connection_close_it(sent: bytes) -> None:
    """Unexpected bytes are never taken for the response to the next request."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI, sent)
        await visit.until_left()

    async with talking(script) as (client, peer):
        await fetch(client)
        await client_leaves(peer)
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


async def test_a_greeting_before_the_request_is_broken() -> None:
    """A peer that speaks first, as other protocols do, raises Broken whenever its bytes arrive."""

    async def script(visit: Visit) -> None:
        await visit.say(b"220 mail.example ESMTP\r\n")
        await visit.until_left()

    async with talking(script) as (client, _peer):
        for _ in range(20):
            with pytest.raises(Broken):
                await fetch(client)


async def test_an_old_idle_connection_is_not_used(clock: Clock) -> None:
    """An idle connection is used shortly before its limit, and replaced by a new one after it."""
    async with talking(always(HI)) as (client, peer):
        await fetch(client)
        await clock.leap(IDLE_S_MAX - 1)
        await fetch(client)
        assert peer.requests_per_visit == [2]
        await clock.leap(IDLE_S_MAX)
        await fetch(client)
        assert peer.requests_per_visit == [2, 1]
        await client_leaves(peer)


async def test_idle_connections_are_closed_without_another_request(clock: Clock) -> None:
    """A timer closes each connection that was idle for too long, so that a burst of requests leaves no files open."""
    async with talking(always(HI)) as (client, peer):
        await asyncio.gather(*(fetch(client) for _ in range(20)))
        for _ in range(math.ceil(IDLE_S_MAX / PRUNE_S) + 1):
            await clock.leap(PRUNE_S)
        for visit in peer.visits:
            await happens(visit.left)
        await fetch(client)


async def test_concurrent_requests() -> None:
    """Concurrent requests never share a connection, and later ones reuse the idle connections."""

    async def script(visit: Visit) -> None:
        while True:
            body = json.dumps((await visit.request()).json).encode()
            await visit.say(OK + b"content-length: %d\r\n\r\n" % len(body), body)

    async def ask(number: int) -> None:
        body = json.dumps({"number": number, "filler": "x" * number * 50}).encode()
        assert (await fetch(client, body=body)).body == body

    async with talking(script) as (client, peer):
        await asyncio.gather(*map(ask, range(80)))
        assert peer.requests_per_visit == [1] * 80
        await asyncio.gather(*map(ask, range(80)))
        assert peer.requests_per_visit == [2] * 80


async def test_close_closes_idle_connections() -> None:
    """Closing the client closes every idle connection."""
    async with talking(always(HI)) as (client, peer):
        await asyncio.gather(*(fetch(client) for _ in range(5)))
        await client.close()
        for visit in peer.visits:
            await happens(visit.left)
        assert len(peer.visits) == 5


async def test_a_request_that_outlives_the_client() -> None:
    """A request that runs when the client is closed ends well, and its connection is closed with it."""
    go_on = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI[:-1])
        await go_on.wait()
        await visit.say(HI[-1:])
        await visit.until_left()

    async with Peer(script) as peer, client_of(peer.url) as client, asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            await client.close()
            go_on.set()
            assert [await read_part(response) for _ in range(3)] == [b"h", b"i", None]
        await client_leaves(peer)


async def test_a_connection_that_was_lost_before_its_first_request() -> None:
    """A peer that closes as soon as it has accepted raises Unanswered."""

    async def script(visit: Visit) -> None:
        visit.reset()

    async with Peer(script) as peer:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(ClientConnection, LOCALHOST, peer.port)
        await until(lambda: not connection.is_usable())
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(Unanswered):
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
