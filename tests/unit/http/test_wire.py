"""The wire: the bytes of a reply, the order of replies, and bodies that come in any way."""

import asyncio
import time
from email.utils import parsedate_to_datetime

import pytest

from cadenza.http.exchange import CORS
from tests.unit.gateway.clients import unchunked
from tests.unit.http.visits import LAST_CHUNK, PIECE, WAIT_S, WHOLE, Client, request, tell

EVERY_LINE = {*CORS.removesuffix(b"\r\n").split(b"\r\n"), b"x-request-id: r-1"}


def without_date(lines: list[bytes]) -> list[bytes]:
    """The lines of a head but the date, which is there once and is now."""
    [date] = [line for line in lines if line.startswith(b"date: ")]
    assert abs(parsedate_to_datetime(date[6:].decode()).timestamp() - time.time()) < WAIT_S
    return [line for line in lines if line != date]


def test_the_bytes_of_a_whole_reply() -> None:
    """A reply has its status line, each header once, the date, its length and its body, and nothing else."""

    async def story(client: Client) -> None:
        await client.say(request("/whole"))
        first, lines, body = await client.reply()
        assert (first, body) == (b"HTTP/1.1 200 OK", WHOLE)
        assert sorted(without_date(lines)) == sorted(
            {*EVERY_LINE, b"content-type: application/json", b"content-length: 11"}
        )

    tell(story)


def test_the_bytes_of_a_stream() -> None:
    """A stream is chunked: a chunk for each write, the last one with the end, and no length."""

    async def story(client: Client) -> None:
        await client.say(request("/stream"))
        first, lines, body = await client.reply()
        assert first == b"HTTP/1.1 200 OK"
        assert {line.partition(b":")[0] for line in lines} >= {b"cache-control", b"content-type", b"transfer-encoding"}
        assert set(without_date(lines)) >= EVERY_LINE
        assert len({line.partition(b":")[0] for line in lines}) == len(lines)
        assert not any(line.startswith((b"content-length", b"connection")) for line in lines)
        assert unchunked(body) == [b"one", b"two and a bit more", b"done", b""]

    tell(story)


def test_a_reply_without_a_body() -> None:
    """A 204 has neither a length nor chunks, and the next request on the connection is answered."""

    async def story(client: Client) -> None:
        await client.say(request("/none", method="OPTIONS") + request("/whole"))
        first, lines, _ = await client.reply()
        assert (first, set(without_date(lines))) == (b"HTTP/1.1 204 No Content", EVERY_LINE)
        assert (await client.reply())[2] == WHOLE

    tell(story)


def test_head_has_the_length_and_no_body() -> None:
    """HEAD is answered with the head of the reply alone, and the next request on the connection is answered."""

    async def story(client: Client) -> None:
        await client.say(request("/whole", method="HEAD"))
        head = await client.hear(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length: 11\r\n" in head
        await client.say(request("/whole"))
        assert (await client.reply())[0::2] == (b"HTTP/1.1 200 OK", WHOLE)

    tell(story)


@pytest.mark.parametrize("path", ["/whole", "/stream", "/body", "/none"])
def test_a_connection_is_used_again(path: str) -> None:
    """After a reply of any kind the connection serves the next request, many times over."""

    async def story(client: Client) -> None:
        for number in range(5):
            await client.say(request(path, request_id=f"r-{number}"))
            _, lines, _ = await client.reply()
            assert b"x-request-id: r-%d" % number in lines
            assert b"connection: close" not in lines

    tell(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests that come at once are answered one after the other, each with its own id and body."""

    async def story(client: Client) -> None:
        paths = ["/body", "/stream", "/whole", "/body", "/none", "/body"]
        said = [request(path, b"body %d" % place, request_id=f"r-{place}") for place, path in enumerate(paths)]
        await client.say(b"".join(said))
        for place, path in enumerate(paths):
            _, lines, body = await client.reply()
            assert b"x-request-id: r-%d" % place in lines
            if path == "/body":
                assert body == b"body %d" % place
        assert client.site.asked == paths

    tell(story)


@pytest.mark.parametrize(
    ("path", "more", "status", "is_said"),
    [("/hang-up", "", 503, True), ("/whole", "connection: close\r\n", 200, True), ("/cut", "", 200, False)],
)
def test_a_connection_that_is_hung_up(path: str, more: str, status: int, is_said: bool) -> None:
    """Where a reply is the last one, it says so if that is known at its head, is whole, and the connection ends."""

    async def story(client: Client) -> None:
        await client.say(request(path, more=more) + request("/whole"))
        first, lines, body = await client.reply()
        assert first.startswith(b"HTTP/1.1 %d " % status)
        assert (b"connection: close" in lines) == is_said
        assert body
        assert await client.hear_the_end() == b""
        assert client.site.asked == [path]

    tell(story)


@pytest.mark.parametrize("size_bytes", [0, 1, 70_000, 300_000])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_body_arrives_whole(size_bytes: int, parts: int) -> None:
    """A body is had whole, be it there with its head, in parts after it, or larger than what is read at once."""

    async def story(client: Client) -> None:
        body = bytes(place % 251 for place in range(size_bytes))
        said = request("/body", body)
        step = len(said) // parts + 1
        for start in range(0, len(said), step):
            await client.say(said[start : start + step])
        assert (await client.reply())[2] == body

    tell(story)


def test_a_chunked_body_arrives_whole() -> None:
    """A body without a length, in chunks that come one by one, is had whole."""

    async def story(client: Client) -> None:
        await client.say(b"POST /body HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (b"3\r\none\r\n", b"3\r\nt", b"wo\r\n", LAST_CHUNK):
            await client.say(part)
        assert (await client.reply())[2] == b"onetwo"

    tell(story)


def test_a_client_that_waits_for_the_word_to_go_on() -> None:
    """`Expect: 100-continue` is answered when the body is wanted, and then the reply follows as ever."""

    async def story(client: Client) -> None:
        said = request("/body", b"the body", more="expect: 100-continue\r\n")
        await client.say(said.removesuffix(b"the body"))
        assert await client.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.say(b"the body")
        assert (await client.reply())[0::2] == (b"HTTP/1.1 200 OK", b"the body")

    tell(story)


def test_a_body_that_nobody_wants_is_not_asked_for() -> None:
    """Where the reply does not need the body, it comes at once and without a word to go on."""

    async def story(client: Client) -> None:
        await client.say(request("/whole", more="expect: 100-continue\r\n"))
        assert (await client.reply())[0] == b"HTTP/1.1 200 OK"

    tell(story)


def test_nothing_is_written_now_to_a_client_that_does_not_read() -> None:
    """What would have to wait is refused, and not sent; once the client has read, it goes again."""

    async def story(client: Client) -> None:
        site = client.site
        await client.say(request("/flow"))
        await asyncio.wait_for(site.full.wait(), WAIT_S)
        site.go.set()
        await client.hear(b"\r\n\r\n")
        body = b""
        while not body.endswith(LAST_CHUNK):
            body += await client.hear_some()
        assert site.sent > 0
        assert unchunked(body) == [PIECE] * site.sent + [b"more", b"done", b""]

    tell(story)
