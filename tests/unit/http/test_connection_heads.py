"""The heads of requests: targets, fields, old clients, wishes of clients, and what is ambiguous and so refused."""

import json

import pytest

from tests.unit.http.visits import LAST_CHUNK, WHOLE, Client, check_refused, request, tell

GET = b"GET /asked HTTP/1.1\r\nhost: here\r\n"
POST = b"POST /body HTTP/1.1\r\nhost: here\r\n"
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
EXPECT = "Expect: 100-Continue\r\n"
TOLD = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a", "/a", b""),
        ("/a?b=c&d", "/a", b"b=c&d"),
        ("/a?", "/a", b""),
        ("/a?b?c", "/a", b"b?c"),
        ("/a?b=c#d", "/a", b"b=c"),
        ("/a#b?c", "/a", b""),
        ("/a%20b%2Fc%3F?d%20e", "/a b/c?", b"d%20e"),
        ("/%E2%82%AC", "/€", b""),
        ("/%zz%", "/%zz%", b""),
        ("//a/b", "//a/b", b""),
        ("http://here/a?b", "/a", b"b"),
        ("http://here:8080/a%20b", "/a b", b""),
        ("http://here", "/", b""),
        ("http://here?b", "/", b"b"),
    ],
)
def test_targets(target: str, path: str, query: bytes) -> None:
    """The path is had without its percents, the query as it came; the host of an absolute target does not matter."""

    async def story(client: Client) -> None:
        await client.say(request(target))
        assert (await client.reply())[0] == b"HTTP/1.1 200 OK"
        [exchange] = client.site.exchanges
        assert (exchange.path, exchange.query) == (path, query)

    tell(story)


@pytest.mark.parametrize(
    "line",
    ["OPTIONS *", "GET *", "GET a", "GET here:80", "CONNECT here:80", "GET http://", "GET /\x7f", "GET /a b", "GET /é"],
)
def test_what_is_no_target_is_refused(line: str) -> None:
    """A request for anything but a path is a 400 in the error shape."""

    async def story(client: Client) -> None:
        await client.say(f"{line} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
        check_refused(await client.hear_the_end())
        assert client.site.exchanges == []

    tell(story)


@pytest.mark.parametrize(
    "said",
    [
        GET + b"a: b\r\n c\r\n\r\n",
        GET + b"a: b\x00c\r\n\r\n",
        GET + b"a : b\r\n\r\n",
        GET + b" a: b\r\n\r\n",
        GET + b"a: b\rc: d\r\n\r\n",
        GET + b"a: b\nc: d\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b": no name\r\n\r\n",
        POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + LAST_CHUNK,
        POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n" + LAST_CHUNK,
        POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nfour",
        POST + b"content-length: 3, 4\r\n\r\nfour",
        POST + b"content-length: -3\r\n\r\n",
        POST + b"content-length: +3\r\n\r\none",
        POST + b"content-length: 0x3\r\n\r\none",
        POST + b"content-length: 99999999999999999999999\r\n\r\n",
        POST + b"transfer-encoding: chunked, identity\r\n\r\n" + LAST_CHUNK,
        POST + b"transfer-encoding: gzip\r\n\r\n",
        POST + b"transfer-encoding: xchunked\r\n\r\n" + LAST_CHUNK,
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1\r\nxx\r\n" + LAST_CHUNK,
        POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
        b"GET / http/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(said: bytes) -> None:
    """Heads and bodies that a proxy might understand otherwise get one 400, and what follows is not looked at."""

    async def story(client: Client) -> None:
        await client.say(said + request("/whole"))
        check_refused(await client.hear_the_end())
        assert "/whole" not in client.site.asked

    tell(story)


def test_fields_as_they_are_known() -> None:
    """Names are in lower case, fields in their order; of one that is repeated the first counts."""

    async def story(client: Client) -> None:
        await client.say(GET + b"X-API-Key: first\r\nx-Api-kEY: second\r\nempty:\r\nEVEN:  with  room \r\n\r\n")
        known = json.loads((await client.reply())[2])
        names = [name for name, _ in known["fields"]]
        assert names == ["host", "x-api-key", "x-api-key", "empty", "even"]
        assert known["headers"]["x-api-key"] == "first"
        assert known["headers"]["empty"] == ""
        assert known["headers"]["even"].strip() == "with  room"

    tell(story)


def test_trailers_are_no_headers() -> None:
    """What stands behind a chunked body does not count as if it had stood before it."""

    async def story(client: Client) -> None:
        trailer = b"X-Forwarded-For: 203.0.113.7\r\nx-api-key: late\r\n"
        await client.say(POST + b"Transfer-Encoding: Chunked\r\n\r\n3\r\none\r\n0\r\n" + trailer + b"\r\n")
        assert (await client.reply())[2] == b"one"
        [exchange] = client.site.exchanges
        assert [name for name, _ in exchange.fields] == [b"host", b"transfer-encoding"]
        assert exchange.address == "127.0.0.1"
        await client.check_served()

    tell(story)


@pytest.mark.parametrize("more", ["", "connection: keep-alive\r\n"])
@pytest.mark.parametrize(
    ("path", "body"), [("/whole", WHOLE), ("/stream", b"onetwo and a bit moredone"), ("/none", b"")]
)
def test_old_clients(path: str, body: bytes, more: str) -> None:
    """HTTP/1.0 has its reply without chunks, is told that the connection closes, and it does."""

    async def story(client: Client) -> None:
        await client.say(request(path, more=more).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, heard = (await client.hear_the_end()).partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        assert lines.count(b"connection: close") == 1
        assert not any(line.startswith(b"transfer-encoding") for line in lines)
        assert heard == body

    tell(story)


def test_old_clients_are_not_told_to_go_on() -> None:
    """HTTP/1.0 knows no interim replies: its wish for one is passed over."""

    async def story(client: Client) -> None:
        said = request("/body", b"the body", more=EXPECT).replace(b"HTTP/1.1", b"HTTP/1.0")
        await client.say(said.removesuffix(b"the body"))
        await client.say(b"the body")
        first, _, body = await client.reply()
        assert (first, body) == (b"HTTP/1.1 200 OK", b"the body")

    tell(story)


def test_to_go_on_is_told_once() -> None:
    """A client that waits before it sends its body is told once to go on, however many parts the body has."""

    async def story(client: Client) -> None:
        await client.say(request("/body-when-told", b"one two", more=EXPECT).removesuffix(b"one two"))
        client.site.go.set()
        assert await client.hear(b"\r\n\r\n") == TOLD
        for part in (b"one", b" ", b"two"):
            await client.say(part)
        first, lines, body = await client.reply()
        assert (first, body) == (b"HTTP/1.1 200 OK", b"one two")
        assert b"connection: close" not in lines
        await client.check_served()

    tell(story)


def test_nothing_is_told_before_the_body_is_wanted() -> None:
    """A client that waits, and whose body nobody reads, hears the reply alone, which says that it is the last."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told", b"one two", more=EXPECT).removesuffix(b"one two"))
        client.site.go.set()
        said = await client.hear_the_end()
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in said
        assert said.endswith(WHOLE)

    tell(story)


def test_who_did_not_wait_is_not_told() -> None:
    """A client that asked for the word and sent its body with the head has its reply alone."""

    async def story(client: Client) -> None:
        await client.say(request("/body", b"one two", more=EXPECT))
        first, lines, body = await client.reply()
        assert (first, body) == (b"HTTP/1.1 200 OK", b"one two")
        assert b"connection: close" not in lines
        await client.check_served()

    tell(story)


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize(
    "said",
    [
        request("/asked", method="GET", more=H2C).replace(b"content-length: 0\r\n", b""),
        request("/body", b"a body", more=H2C),
        request("/body", b"a body", more=EXPECT + H2C),
        POST + H2C.encode() + b"transfer-encoding: chunked\r\n\r\n6\r\na body\r\n" + LAST_CHUNK,
        request("/body", b"a body", more="Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    ],
    ids=["get", "post", "expect", "chunked", "websocket"],
)
def test_another_protocol_is_not_changed_to(said: bytes, is_at_once: bool) -> None:
    """A wish to change the protocol is passed over: the reply is that of HTTP/1.1, with its body, and the last one."""

    async def story(client: Client) -> None:
        if is_at_once:
            await client.say(said + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        else:
            for byte in said:
                await client.say(bytes([byte]))
        heard = (await client.hear_the_end()).removeprefix(TOLD)
        head, _, body = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert head.split(b"\r\n").count(b"connection: close") == 1
        assert body == b"a body" or json.loads(body)["headers"]["upgrade"] == "h2c"
        assert len(client.site.exchanges) == 1

    tell(story)


def test_a_change_of_protocol_that_is_answered_before_its_body() -> None:
    """Where the reply does not wait for the body, it says that it is the last one, and the connection closes."""

    async def story(client: Client) -> None:
        await client.say(request("/whole", b"a body", more=H2C).removesuffix(b"a body"))
        first, lines, _ = await client.reply()
        assert first == b"HTTP/1.1 200 OK"
        assert b"connection: close" in lines
        assert await client.hear_the_end() == b""

    tell(story)


def test_a_change_of_protocol_behind_another_request() -> None:
    """Both are answered, and only the second is the last one."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told") + request("/body", b"a body", request_id="r-2", more=H2C))
        client.site.go.set()
        _, lines, _ = await client.reply()
        assert b"connection: close" not in lines
        _, lines, body = await client.reply()
        assert {b"connection: close", b"x-request-id: r-2"} <= set(lines)
        assert body == b"a body"
        assert await client.hear_the_end() == b""

    tell(story)
