"""The upstream HTTP client: what it sends, how it reads any answer, and when it keeps a connection for the next."""

import asyncio
import json
import socket

import pytest

from cadenza.http.client import HEAD_BYTES_MAX, IDLE_S_MAX, Broken, Unanswered
from tests.unit.http.peer import (
    LOCALHOST,
    WAIT_S,
    Peer,
    Story,
    Visit,
    always,
    answering,
    client_of,
    fetch,
    happens,
    read_all,
    talking,
    until,
)
from tests.unit.upstreams.clock import Clock

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
EMPTY = b"content-length: 0\r\n\r\n"


async def test_a_request_on_the_wire() -> None:
    """Method, the base address's path and the given headers go out as they are, with the length of the body."""
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
    """A numeric IPv6 address is reached, and stands in brackets in the host field."""
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
async def test_a_connection_is_kept_after_a_whole_answer(reply: bytes, status: int, body: bytes) -> None:
    """However an answer says where it ends, it is read to its end and the connection serves again."""
    async with talking(always(reply)) as (client, peer):
        for _ in range(3):
            answer = await fetch(client)
            assert (answer.status, answer.body) == (status, body)
        assert peer.requests_per_visit == [3]


NOT_KEPT = {
    "said so": (OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "said so in capitals": (OK + b"Connection: Close\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "said so, in chunks": (OK + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "no length": (OK + b"\r\nhi there", b"hi there"),
    "no length and empty": (OK + b"\r\n", b""),
    "no length but closing": (OK + b"connection: close\r\n\r\n{}", b"{}"),
}


@pytest.mark.parametrize(("reply", "body"), NOT_KEPT.values(), ids=NOT_KEPT)
async def test_a_connection_that_ends_with_its_answer(reply: bytes, body: bytes) -> None:
    """An answer that ends with its connection, by its word or by want of a length, is whole; the next needs another."""
    async with talking(answering(reply)) as (client, peer):
        for _ in range(2):
            answer = await fetch(client)
            assert (answer.status, answer.body) == (200, body)
        assert peer.requests_per_visit == [1, 1]


@pytest.mark.parametrize("reply", [reply for reply, _ in NOT_KEPT.values() if reply[-2:] == b"hi"])
async def test_a_connection_that_shall_end_is_ended_by_us(reply: bytes) -> None:
    """An upstream that says it will close, and waits, finds the connection closed after its answer."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(reply)
        await visit.until_left()

    async with talking(story) as (client, peer):
        assert (await fetch(client)).body == b"hi"
        await happens(peer.visits[0].left)


async def test_a_body_without_a_length_that_is_reset_is_broken() -> None:
    """Where the end of the connection is the end of the body, a reset is none."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK + b"\r\nhalf of")
        visit.reset()

    async with talking(story) as (client, _peer):
        with pytest.raises(Broken):
            await fetch(client)


async def test_header_names_in_any_case() -> None:
    """Names of headers are in lower case whatever the upstream writes; values are as it writes them."""
    fields = b"CONTENT-TYPE: Text/Event-Stream\r\nX-Empty:\r\nreTry-After:   7\r\nContent-LENGTH: 2\r\n"
    async with talking(always(OK + fields + b"\r\nhi")) as (client, _peer):
        assert (await fetch(client)).headers == {
            b"content-type": b"Text/Event-Stream",
            b"x-empty": b"",
            b"retry-after": b"7",
            b"content-length": b"2",
        }


async def test_headers_are_those_of_the_answer_itself() -> None:
    """Nothing of an interim response, of a trailer or of the exchange before is among an answer's headers."""
    interim = b"HTTP/1.1 103 Early Hints\r\nx-hint: 1\r\n\r\n"
    chunked = OK + b"x-own: yes\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-own: no\r\nx-late: 1\r\n\r\n"
    async with talking(answering(OK + b"x-before: 1\r\n" + EMPTY, interim + chunked)) as (client, _peer):
        await fetch(client)
        assert (await fetch(client)).headers == {b"x-own": b"yes", b"transfer-encoding": b"chunked"}


async def test_an_answer_split_at_every_byte() -> None:
    """Wherever the wire cuts an answer in two, it is the same answer."""
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"5\r\nhello\r\n7;a=b\r\n, there\r\n0\r\nx-late: 1\r\n\r\n"

    async def story(visit: Visit) -> None:
        for place in range(1, len(whole)):
            await visit.request()
            await visit.say(whole[:place], whole[place:])

    async with talking(story) as (client, peer):
        for _ in range(1, len(whole)):
            answer = await fetch(client)
            assert (answer.status, answer.body) == (200, b"hello, there")
        assert peer.requests_per_visit == [len(whole) - 1]


async def test_an_answer_of_single_bytes() -> None:
    """An answer that comes byte by byte is read as if it had come at once."""
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(*(whole[place : place + 1] for place in range(len(whole))))

    async with talking(story) as (client, _peer):
        assert (await fetch(client)).body == b"hello"


SHORT = {
    "length": OK + b"content-length: 9\r\n\r\nhalf",
    "chunk": CHUNKED + b"9\r\nhalf",
    "between chunks": CHUNKED + b"4\r\nhalf\r\n",
    "after the last chunk": CHUNKED + b"4\r\nhalf\r\n0\r\n",
    "garbage for a chunk": CHUNKED + b"4\r\nhalf\r\nnonsense\r\n",
}


@pytest.mark.parametrize("reply", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_an_answer_that_stops_short_is_broken(reply: bytes, ending: str) -> None:
    """What came is handed out, then the answer is Broken, and never looks like a whole one."""
    read_half = asyncio.Event()

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(reply)
        await read_half.wait()
        if ending == "reset":
            visit.reset()

    async with (
        asyncio.timeout(WAIT_S),
        talking(story) as (client, _peer),
        client.request("POST", "/", b"", WAIT_S) as response,
    ):
        assert await response.read() == b"half"
        read_half.set()
        with pytest.raises(Broken):
            await response.read()


EXTRA = {
    "garbage": b"extra",
    "the beginning of an answer": b"HTTP",
    "a whole second answer": b"HTTP/1.1 500 Oops\r\nx-second: 1\r\ncontent-length: 3\r\n\r\nbad",
    "an interim response": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "at once"])
@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA)
async def test_more_than_was_promised_ends_the_connection(extra: bytes, apart: bool) -> None:
    """The answer is what its length says and no more; whatever came behind it is not taken for the next answer."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(*([HI, extra] if apart else [HI + extra]))
        await visit.until_left()

    async with talking(story) as (client, peer):
        for number in range(2):
            answer = await fetch(client)
            assert (answer.status, answer.headers, answer.body) == (200, {b"content-length": b"2"}, b"hi")
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


@pytest.mark.parametrize("said", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_not_http_is_broken(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no HTTP/1.1 answer are Broken at once, and the connection is closed without a cry in the log."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(said)
        await visit.until_left()

    async with talking(story) as (client, peer):
        with pytest.raises(Broken) as failure:
            await fetch(client)
        assert not isinstance(failure.value, Unanswered)
        await happens(peer.visits[0].left)
        assert peer.requests_per_visit == [1]
    assert caplog.records == []


ENDLESS = {
    "headers": (OK, b"x-more: and more\r\n" * 50),
    "one header": (OK + b"x-long: ", b"long" * 250),
    "a reason phrase": (b"HTTP/1.1 200 ", b"very " * 200),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "empty lines": (b"", b"\r\n" * 500),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\n", b"x-more: and more\r\n" * 50),
}


@pytest.mark.parametrize(("begin", "more"), ENDLESS.values(), ids=ENDLESS)
async def test_a_head_without_end_is_broken(begin: bytes, more: bytes) -> None:
    """What is not body is not gathered for ever: past a bound the answer is Broken and the connection closed."""
    said_bytes = 0

    async def story(visit: Visit) -> None:
        nonlocal said_bytes
        await visit.request()
        await visit.say(begin)
        while said_bytes < 64 * HEAD_BYTES_MAX:
            await visit.say(more)
            said_bytes += len(more)
        await visit.until_left()

    async with talking(story) as (client, peer):
        with pytest.raises(Broken):
            await fetch(client)
        await happens(peer.visits[0].left)
    assert HEAD_BYTES_MAX / 2 < said_bytes < 64 * HEAD_BYTES_MAX


async def test_a_large_head_within_the_bound_is_read() -> None:
    """A head that is large but ends is an answer like any other."""
    fields = b"".join(b"x-%d: %s\r\n" % (number, b"v" * 1000) for number in range(60))
    assert len(fields) < HEAD_BYTES_MAX
    async with talking(always(OK + fields + EMPTY)) as (client, _peer):
        assert len((await fetch(client)).headers) == 61


async def test_a_body_is_handed_out_as_it_comes() -> None:
    """Each part of a body reaches the reader before the next one is sent."""
    was_read = asyncio.Event()

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(CHUNKED)
        for part in (b"one", b"two", b"six"):
            await visit.say(b"3\r\n%b\r\n" % part)
            await was_read.wait()
            was_read.clear()
        await visit.say(b"0\r\n\r\n")

    async with (
        asyncio.timeout(WAIT_S),
        talking(story) as (client, _peer),
        client.request("POST", "/", b"", WAIT_S) as response,
    ):
        for part in (b"one", b"two", b"six"):
            assert await response.read() == part
            was_read.set()
        assert await response.read() is None
        assert await response.read() is None


async def test_a_kept_connection_closed_while_idle_costs_no_request() -> None:
    """A connection that the upstream closed meanwhile is not used: the next request goes out once, on a new one."""
    async with talking(answering(HI)) as (client, peer), asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            assert await read_all(response) == b"hi"
        await until(lambda: not response.is_usable())
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


def leaving_at_the_second_request(last_words: bytes, ending: str = "close", visits: int = 1) -> Story:
    """So many connections answer once and end at their second request; later ones answer always."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI)
        await visit.request()
        if visit.number < visits:
            await visit.say(last_words)
            if ending == "reset":
                visit.reset()
        else:
            await visit.say(HI)

    return story


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_kept_connection_closed_as_it_is_used_is_tried_once_more(ending: str) -> None:
    """A request that met a connection just closed, and not a byte of an answer, goes out again on a new one."""
    async with talking(leaving_at_the_second_request(b"", ending)) as (client, peer):
        await fetch(client, body=b"first")
        assert (await fetch(client, body=b"second")).body == b"hi"
        assert peer.requests_per_visit == [2, 1]
        assert peer.visits[1].requests[0].body == b"second"


async def test_only_one_kept_connection_is_tried() -> None:
    """However many kept connections have gone stale, a request goes out twice at most, the second time on a new one."""
    async with talking(leaving_at_the_second_request(b"", visits=3)) as (client, peer):
        await asyncio.gather(*(fetch(client) for _ in range(3)))
        assert peer.requests_per_visit == [1, 1, 1]
        assert (await fetch(client)).body == b"hi"
        assert sorted(peer.requests_per_visit) == [1, 1, 1, 2]


async def test_a_new_connection_is_tried_only_once() -> None:
    """A new connection that ends without an answer is Unanswered: the request does not go out again."""
    async with talking(answering()) as (client, peer):
        with pytest.raises(Unanswered):
            await fetch(client)
        assert len(peer.visits) == 1


async def test_a_request_goes_out_twice_at_most() -> None:
    """Where the new connection ends without an answer too, that is the end of it."""

    async def story(visit: Visit) -> None:
        await visit.request()
        if visit.number == 0:
            await visit.say(HI)
            await visit.request()

    async with talking(story) as (client, peer):
        await fetch(client)
        with pytest.raises(Unanswered):
            await fetch(client)
        assert peer.requests_per_visit == [2, 1]


@pytest.mark.parametrize("last_words", [b"H", b"HTTP/1.1 200 OK\r\n", OK + b"content-length: 2\r\n\r\n"])
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_after_a_byte_of_an_answer_nothing_is_tried_again(last_words: bytes, ending: str) -> None:
    """An upstream that has begun to answer has the request: it is never sent a second time."""
    async with talking(leaving_at_the_second_request(last_words, ending)) as (client, peer):
        await fetch(client)
        with pytest.raises(Broken) as failure:
            await fetch(client)
        assert not isinstance(failure.value, Unanswered)
        assert peer.requests_per_visit == [2]


@pytest.mark.parametrize("said", [b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"\r\n", b"\0"])
async def test_what_an_idle_connection_says_ends_it(said: bytes) -> None:
    """Bytes that nobody asked for are never taken for the answer to the next request."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI, said)
        await visit.until_left()

    async with talking(story) as (client, peer):
        await fetch(client)
        await happens(peer.visits[0].left)
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


async def test_a_greeting_before_the_request_is_no_answer() -> None:
    """A peer that speaks first, as other protocols do, is Broken, whenever its words arrive."""

    async def story(visit: Visit) -> None:
        await visit.say(b"220 mail.example ESMTP\r\n")
        await visit.until_left()

    async with talking(story) as (client, _peer):
        for _ in range(20):
            with pytest.raises(Broken):
                await fetch(client)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_connection_idle_for_too_long_is_not_used(clock: Clock) -> None:
    """A connection serves again shortly before its bound and is closed in favour of a new one after it."""
    async with talking(always(HI)) as (client, peer):
        await fetch(client)
        await clock.leap(IDLE_S_MAX - 1)
        await fetch(client)
        assert peer.requests_per_visit == [2]
        await clock.leap(IDLE_S_MAX)
        await fetch(client)
        assert peer.requests_per_visit == [2, 1]
        await happens(peer.visits[0].left)


async def test_many_requests_at_once_get_each_its_own_answer() -> None:
    """Requests under way together never share a connection, and those that follow need no new ones."""

    async def story(visit: Visit) -> None:
        while True:
            body = json.dumps((await visit.request()).json).encode()
            await visit.say(OK + b"content-length: %d\r\n\r\n" % len(body), body)

    async def ask(number: int) -> None:
        body = json.dumps({"number": number, "filler": "x" * number * 50}).encode()
        assert (await fetch(client, body=body)).body == body

    async with talking(story) as (client, peer):
        await asyncio.gather(*map(ask, range(80)))
        assert peer.requests_per_visit == [1] * 80
        await asyncio.gather(*map(ask, range(80)))
        assert peer.requests_per_visit == [2] * 80


async def test_close_ends_idle_connections() -> None:
    """Closing the client closes every connection that it kept."""
    async with talking(always(HI)) as (client, peer):
        await asyncio.gather(*(fetch(client) for _ in range(5)))
        await client.close()
        for visit in peer.visits:
            await happens(visit.left)
        assert len(peer.visits) == 5


async def test_a_request_that_outlives_the_client_keeps_nothing() -> None:
    """A request under way when the client is closed is finished, and its connection is closed with it."""
    go_on = asyncio.Event()

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(HI[:-1])
        await go_on.wait()
        await visit.say(HI[-1:])
        await visit.until_left()

    async with Peer(story) as peer, client_of(peer.url) as client, asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            await client.close()
            go_on.set()
            assert [await response.read() for _ in range(3)] == [b"h", b"i", None]
        await happens(peer.visits[0].left)
