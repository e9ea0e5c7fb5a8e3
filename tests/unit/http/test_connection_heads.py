"""The heads of requests: targets, fields, HTTP/1.0, 100-continue, upgrades, and malformed requests."""

import json

import pytest

from tests.unit.http.raw_client import LAST_CHUNK, RawClient, request
from tests.unit.http.testing_site import WHOLE, Site, check_malformed, check_served

GET = b"GET /head HTTP/1.1\r\nhost: here\r\n"
POST = b"POST /body HTTP/1.1\r\nhost: here\r\n"
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
EXPECT = "Expect: 100-Continue\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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
async def test_targets(site: Site, client: RawClient, target: str, path: str, query: bytes) -> None:
    """The path is percent-decoded, the query is as it came, and the host of an absolute target is ignored."""
    await client.send(request(target))
    assert (await client.reply())[0] == b"HTTP/1.1 200 OK"
    [exchange] = site.exchanges
    assert (exchange.request.path, exchange.request.query) == (path, query)


@pytest.mark.parametrize(
    "line",
    ["OPTIONS *", "GET *", "GET a", "GET here:80", "CONNECT here:80", "GET http://", "GET /\x7f", "GET /a b", "GET /é"],
)
async def test_malformed_targets(site: Site, client: RawClient, line: str) -> None:
    """A request for anything but a path is refused with 400."""
    await client.send(f"{line} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
    check_malformed(await client.read_to_end())
    assert site.exchanges == []


@pytest.mark.parametrize(
    "sent",
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
async def test_ambiguous_requests(site: Site, client: RawClient, sent: bytes) -> None:
    """Requests that a proxy might read differently get one 400, and the bytes behind them are ignored."""
    await client.send(sent + request("/whole"))
    check_malformed(await client.read_to_end())
    assert "/whole" not in site.paths


async def test_fields(client: RawClient) -> None:
    """Names are in lower case, fields are in order, and the first of a repeated header counts."""
    await client.send(GET + b"X-API-Key: first\r\nx-Api-kEY: second\r\nempty:\r\nEVEN:  with  room \r\n\r\n")
    head = json.loads((await client.reply())[2])
    names = [name for name, _ in head["fields"]]
    assert names == ["host", "x-api-key", "x-api-key", "empty", "even"]
    assert head["headers"]["x-api-key"] == "first"
    assert head["headers"]["empty"] == ""
    assert head["headers"]["even"].strip() == "with  room"


async def test_trailers_are_not_headers(site: Site, client: RawClient) -> None:
    """Fields behind a chunked body are not added to the headers."""
    trailer = b"X-Forwarded-For: 203.0.113.7\r\nx-api-key: late\r\n"
    await client.send(POST + b"Transfer-Encoding: Chunked\r\n\r\n3\r\none\r\n0\r\n" + trailer + b"\r\n")
    assert (await client.reply())[2] == b"one"
    [exchange] = site.exchanges
    assert [name for name, _ in exchange.request.fields] == [b"host", b"transfer-encoding"]
    assert exchange.client_address == "127.0.0.1"
    await check_served(client)


@pytest.mark.parametrize("more", ["", "connection: keep-alive\r\n"])
@pytest.mark.parametrize(
    ("path", "body"), [("/whole", WHOLE), ("/stream", b"onetwo and a bit moredone"), ("/no-content", b"")]
)
async def test_http_1_0(client: RawClient, path: str, body: bytes, more: str) -> None:
    """A reply to HTTP/1.0 has no chunks and says that the connection closes, and it does."""
    await client.send(request(path, more=more).replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, received = (await client.read_to_end()).partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines.count(b"connection: close") == 1
    assert not any(line.startswith(b"transfer-encoding") for line in lines)
    assert received == body


async def test_http_1_0_gets_no_100_continue(client: RawClient) -> None:
    """HTTP/1.0 has no interim replies: its Expect header is ignored."""
    sent = request("/body", b"the body", more=EXPECT).replace(b"HTTP/1.1", b"HTTP/1.0")
    await client.send(sent.removesuffix(b"the body"))
    await client.send(b"the body")
    status_line, _, body = await client.reply()
    assert (status_line, body) == (b"HTTP/1.1 200 OK", b"the body")


async def test_100_continue_is_sent_once(site: Site, client: RawClient) -> None:
    """100 Continue is sent once, when the application reads the body, however many parts the body has."""
    await client.send(request("/body-when-told", b"one two", more=EXPECT).removesuffix(b"one two"))
    site.go_on.set()
    assert await client.read_until(b"\r\n\r\n") == CONTINUE
    for part in (b"one", b" ", b"two"):
        await client.send(part)
    status_line, lines, body = await client.reply()
    assert (status_line, body) == (b"HTTP/1.1 200 OK", b"one two")
    assert b"connection: close" not in lines
    await check_served(client)


async def test_100_continue_is_not_sent_for_an_unread_body(site: Site, client: RawClient) -> None:
    """A client whose body is not read gets the reply alone, and the connection closes after it."""
    await client.send(request("/when-told", b"one two", more=EXPECT).removesuffix(b"one two"))
    site.go_on.set()
    received = await client.read_to_end()
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(WHOLE)


async def test_100_continue_is_not_sent_if_the_body_is_there(client: RawClient) -> None:
    """A client that sends its body with the head, without waiting, gets the reply alone."""
    await client.send(request("/body", b"one two", more=EXPECT))
    status_line, lines, body = await client.reply()
    assert (status_line, body) == (b"HTTP/1.1 200 OK", b"one two")
    assert b"connection: close" not in lines
    await check_served(client)


@pytest.mark.parametrize("is_one_write", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        request("/head", method="GET", more=H2C).replace(b"content-length: 0\r\n", b""),
        request("/body", b"a body", more=H2C),
        request("/body", b"a body", more=EXPECT + H2C),
        POST + H2C.encode() + b"transfer-encoding: chunked\r\n\r\n6\r\na body\r\n" + LAST_CHUNK,
        request("/body", b"a body", more="Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    ],
    ids=["get", "post", "expect", "chunked", "websocket"],
)
async def test_an_upgrade_is_not_granted(site: Site, client: RawClient, sent: bytes, is_one_write: bool) -> None:
    """A request for an upgrade is served as HTTP/1.1, with its body, and the connection closes after the reply."""
    if is_one_write:
        await client.send(sent + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    else:
        await client.send_bytewise(sent)
    received = (await client.read_to_end()).removeprefix(CONTINUE)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.split(b"\r\n").count(b"connection: close") == 1
    assert body == b"a body" or json.loads(body)["headers"]["upgrade"] == "h2c"
    assert len(site.exchanges) == 1
