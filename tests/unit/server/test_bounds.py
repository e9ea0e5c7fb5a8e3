"""What a client may do with a connection: so long for a head, so large a head, so long without reading, then it is cut.

The connections are the service's own, on the loop that it runs on; the times are short, the sockets are real.
"""

import asyncio

import pytest

from cadenza.http import connection
from tests.unit.http.visits import (
    LAST_CHUNK,
    PIECE,
    PIECES,
    SLOW_S,
    WAIT_S,
    WHOLE,
    Client,
    check_refused,
    request,
    tell,
)

SHORT_S = 0.3
STEADY_S = 3.0
REQUEST = b"GET /quick HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone has a short time, and slow pages take longer."""
    assert SHORT_S < SLOW_S < WAIT_S
    monkeypatch.setattr(connection, "HEAD_S", SHORT_S)
    monkeypatch.setattr(connection, "UNREAD_S", SHORT_S)
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", SHORT_S)


def head_of(size_bytes: int, begin: bytes = b"GET /quick HTTP/1.1\r\nx-large: ", end: bytes = b"\r\n\r\n") -> bytes:
    """A whole head of so many bytes."""
    return begin + b"x" * (size_bytes - len(begin) - len(end)) + end


def test_client_that_does_not_read_is_cut() -> None:
    """A stream whose client stops reading ends after a while: the application learns that the client is gone."""

    async def story(client: Client) -> None:
        await client.say(REQUEST.replace(b"quick", b"endless"))
        await client.hear(b"\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            await client.site.left.wait()

    tell(story)


def test_client_that_reads_slowly_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly but steadily, for longer than one may not read at all, has the whole reply."""
    monkeypatch.setattr(connection, "UNREAD_S", STEADY_S / 2)

    async def story(client: Client) -> None:
        await client.say(REQUEST.replace(b"quick", b"large").replace(b"host", b"connection: close\r\nhost"))
        body_bytes = len(await client.hear(b"\r\n\r\n"))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STEADY_S
        while loop.time() < until_s:
            body_bytes += len(await client.hear_some())
            await asyncio.sleep(SHORT_S / 3)
        rest = await client.hear_the_end()
        assert rest.endswith(b"done\r\n" + LAST_CHUNK)
        assert body_bytes + len(rest) > len(PIECE) * PIECES

    tell(story)


def test_slow_reply_is_not_cut() -> None:
    """Neither the time for a head nor the time for a reader runs while the application works."""

    async def story(client: Client) -> None:
        await client.say(REQUEST.replace(b"quick", b"slow"))
        assert (await client.reply())[2].endswith(b"done\r\n" + LAST_CHUNK)

    tell(story)


def test_connection_without_a_request_is_closed() -> None:
    """Whoever connects and says nothing is cut after a while."""

    async def story(client: Client) -> None:
        assert await client.hear_the_end() == b""

    tell(story)


@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "second"])
def test_slow_head_is_cut(before: bytes) -> None:
    """A head that trickles in, the first or a later one of a connection, is not waited for."""

    async def story(client: Client) -> None:
        await client.say(before)
        if before:
            await client.reply()
        end = asyncio.create_task(client.hear_the_end())
        for place in range(len(REQUEST)):
            await client.say(REQUEST[place : place + 1])
            if (await asyncio.wait({end}, timeout=SHORT_S / 4))[0]:
                break
        assert await end == b""
        assert len(client.site.asked) == bool(before)

    tell(story)


@pytest.mark.parametrize("said", [b"\r\n", b"\r\n\r\n"])
def test_line_ends_do_not_keep_a_connection(said: bytes) -> None:
    """Line ends after a reply, which begin no request, do not keep the connection open for ever."""

    async def story(client: Client) -> None:
        await client.say(REQUEST)
        await client.reply()
        await client.say(said)
        assert await client.hear_the_end() == b""

    tell(story)


def test_body_that_nobody_waits_for_does_not_keep_a_connection() -> None:
    """A body that goes on after its reply, and then stops, does not keep the connection open for ever."""

    async def story(client: Client) -> None:
        await client.say(b"POST /quick HTTP/1.1\r\nhost: here\r\ncontent-length: 99\r\n\r\nx")
        await client.reply()
        await client.say(b"x")
        assert await client.hear_the_end() == b""

    tell(story)


def test_idle_connection_is_closed() -> None:
    """A connection that had its reply and says nothing more is closed after a while, and not cut."""

    async def story(client: Client) -> None:
        await client.say(REQUEST)
        assert (await client.hear_the_end()).endswith(WHOLE)

    tell(story)


@pytest.mark.parametrize("piece_bytes", [16_384, 131_072], ids=["in pieces", "at once"])
@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "second"])
@pytest.mark.parametrize("is_target", [False, True], ids=["field", "target"])
def test_large_head_is_refused(before: bytes, piece_bytes: int, is_target: bool) -> None:
    """A head of more than 64 KiB is a 400 in the error shape, however it comes, and reaches no application."""

    async def story(client: Client) -> None:
        await client.say(before)
        if before:
            await client.reply()
        size_bytes = connection.HEAD_BYTES_MAX + 32_768
        head = head_of(size_bytes, b"GET /", b" HTTP/1.1\r\n\r\n") if is_target else head_of(size_bytes)
        end = asyncio.create_task(client.hear_the_end())
        for place in range(0, len(head), piece_bytes):
            await client.say(head[place : place + piece_bytes])
        check_refused(await end)
        assert len(client.site.asked) == bool(before)

    tell(story)


def test_large_head_without_end_is_refused() -> None:
    """A head that never ends is refused when it is too large, without waiting for more."""

    async def story(client: Client) -> None:
        end = asyncio.create_task(client.hear_the_end())
        await client.say(head_of(connection.HEAD_BYTES_MAX + 2048)[:-4])
        check_refused(await end)

    tell(story)


def test_heads_within_the_limit_pass() -> None:
    """Heads of just below 64 KiB are served, one after the other on one connection: the limit is for each."""

    async def story(client: Client) -> None:
        for _ in range(3):
            await client.say(head_of(connection.HEAD_BYTES_MAX - 16))
            assert (await client.reply())[2] == WHOLE

    tell(story)


def test_large_body_is_no_head() -> None:
    """A body larger than any head may be is taken, and the next request on the connection is served."""

    async def story(client: Client) -> None:
        body = b"x" * (4 * connection.HEAD_BYTES_MAX)
        for _ in range(2):
            await client.say(request("/body", body))
            assert (await client.reply())[2] == body
        await client.say(REQUEST * 2)
        for _ in range(2):
            assert (await client.reply())[2] == WHOLE

    tell(story)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_refused(said: bytes) -> None:
    """Bytes of another protocol get our error object and the end of the connection."""

    async def story(client: Client) -> None:
        await client.say(said)
        check_refused(await client.hear_the_end())
        assert client.site.asked == []

    tell(story)


def test_garbage_within_a_reply_ends_it() -> None:
    """Whoever sends garbage while a reply comes sees it break off, and no second answer within it."""

    async def story(client: Client) -> None:
        await client.say(REQUEST.replace(b"quick", b"slow"))
        await client.hear(b"\r\n\r\n")
        await client.say(b"\x00\x01 no request\r\n\r\n")
        assert b"HTTP/1.1" not in await client.hear_the_end()

    tell(story)
