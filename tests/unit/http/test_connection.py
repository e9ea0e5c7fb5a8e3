"""A connection: one request at a time in the order of their coming, bodies of every kind, and what is cut.

The sockets and the loop are those of the service; where a time matters it is short.
"""

import asyncio
import gc
import weakref

import pytest

from cadenza.http import connection
from cadenza.http.exchange import UNREAD_BYTES_MAX
from tests.unit.http.visits import LAST_CHUNK, WAIT_S, WHOLE, Client, check_refused, request, tell, tell_of_two, until

SHORT_S = 0.3
READ_BYTES = 256 * 1024  # what is read of a socket at once, at most
LARGE = b"a large body " * 700_000
CHUNKED = b"POST /body HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
NEXT = request("/whole", request_id="next")


def test_requests_wait_for_the_one_before_them() -> None:
    """While a reply is under way no later request is begun, and then they are served in the order of their coming."""

    async def story(client: Client) -> None:
        later = [request("/body", b"one", request_id="r-2"), request("/stream", request_id="r-3"), NEXT]
        await client.say(request("/when-told") + b"".join(later))
        assert client.site.asked == ["/when-told"]
        client.site.go.set()
        for wanted in (b"r-1", b"r-2", b"r-3", b"next"):
            first, lines, _ = await client.reply()
            assert first == b"HTTP/1.1 200 OK"
            assert b"x-request-id: " + wanted in lines
        assert client.site.asked == ["/when-told", "/body", "/stream", "/whole"]

    tell(story)


def test_nothing_is_read_while_a_request_waits() -> None:
    """A client that goes on asking while a reply is slow is not read any further; later all of it is answered."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told"))
        client.begin_to_say(request("/body", LARGE, request_id="r-2") * 2 + NEXT)
        await until(lambda: not client.far_end().is_reading)
        assert client.far_end().received_bytes < 2 * READ_BYTES
        client.site.go.set()
        bodies = [(await client.reply())[2] for _ in range(4)]
        assert bodies == [WHOLE, LARGE, LARGE, WHOLE]

    tell(story)


def test_of_a_body_that_nobody_reads_only_so_much_is_taken() -> None:
    """Past 64 KiB the server stops reading until someone wants the body, and then it has all of it."""

    async def story(client: Client) -> None:
        client.begin_to_say(request("/body-when-told", LARGE))
        await until(lambda: bool(client.site.connections) and not client.far_end().is_reading)
        assert client.far_end().received_bytes <= UNREAD_BYTES_MAX + READ_BYTES
        client.site.go.set()
        assert (await client.reply())[2] == LARGE
        await client.check_served()

    tell(story)


def test_a_request_that_comes_byte_by_byte() -> None:
    """A head and a body of one byte at a time are read as if they had come at once."""

    async def story(client: Client) -> None:
        for byte in request("/body", b"a body"):
            await client.say(bytes([byte]))
        assert (await client.reply())[2] == b"a body"
        for byte in CHUNKED + b"2\r\na \r\n4;some=thing\r\nbody\r\n" + LAST_CHUNK:
            await client.say(bytes([byte]))
        assert (await client.reply())[2] == b"a body"
        await client.check_served()

    tell(story)


@pytest.mark.parametrize("size_bytes", [100, 1_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_reply_before_the_whole_body(size_bytes: int, is_chunked: bool) -> None:
    """Where the reply does not wait for the body, the rest of it is passed over, and the next request is served."""

    async def story(client: Client) -> None:
        body = b"x" * size_bytes
        said = request("/whole", body)
        if is_chunked:
            said = CHUNKED.replace(b"/body", b"/whole") + b"%x\r\n%b\r\n" % (size_bytes, body) + LAST_CHUNK
        await client.say(said[:200])
        assert (await client.reply())[2] == WHOLE
        await client.say(said[200:])
        await client.check_served()

    tell(story)


@pytest.mark.parametrize("before", [request("/body", b"x" * 100_000), request("/none") * 2000], ids=["large", "many"])
def test_the_beginning_of_a_head_behind_much_else(before: bytes) -> None:
    """The limit of a head is its own: what came before it in the same read does not count."""

    async def story(client: Client) -> None:
        await client.say(before + NEXT[:20])
        for _ in range(before.count(b"POST")):
            await client.reply()
        await client.say(NEXT[20:])
        first, lines, _ = await client.reply()
        assert first == b"HTTP/1.1 200 OK"
        assert b"x-request-id: next" in lines

    tell(story)


def test_a_head_that_is_not_read_further_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a head does not run while the server itself does not read it: the reply before it is not cut."""
    monkeypatch.setattr(connection, "HEAD_S", SHORT_S)

    async def story(client: Client) -> None:
        await client.say(request("/slow") + request("/whole") + NEXT[:20])
        assert (await client.reply())[2].endswith(LAST_CHUNK)
        assert (await client.reply())[2] == WHOLE
        await client.say(NEXT[20:])
        assert b"x-request-id: next" in (await client.reply())[1]

    tell(story)


def test_a_head_that_began_before_the_last_reply_is_late_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that has begun has the time of a head, and not that of an idle connection."""
    monkeypatch.setattr(connection, "HEAD_S", SHORT_S)
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 10 * WAIT_S)

    async def story(client: Client) -> None:
        await client.say(request("/whole") + NEXT[:20])
        assert (await client.reply())[2] == WHOLE
        assert await client.hear_the_end() == b""

    tell(story)


@pytest.mark.parametrize(("path", "heard"), [("/raise", b""), ("/silence", b""), ("/raise-amid", b"3\r\none\r\n")])
def test_what_has_no_answer_is_cut(path: str, heard: bytes) -> None:
    """A exchange that raises, or returns without an answer, ends with its connection; all others go on."""

    async def story(client: Client, other: Client) -> None:
        await other.check_served()
        await client.say(request(path) + NEXT)
        said = await client.hear_the_end()
        assert said.partition(b"\r\n\r\n")[2] == heard
        await other.check_served()
        await until(lambda: len(other.site.connections) == 1)
        assert other.site.asked == ["/whole", path, "/whole"]

    tell_of_two(story)


@pytest.mark.parametrize("size_bytes", [0, 1000, 200_000])
def test_who_leaves_is_noticed_whatever_it_sent(size_bytes: int) -> None:
    """Once a body is whole, small or large, the connection is read on, and so its client is seen to leave."""

    async def story(client: Client) -> None:
        await client.say(request("/wait", b"x" * size_bytes))
        await asyncio.wait_for(client.site.watching.wait(), WAIT_S)
        await until(lambda: client.site.exchanges[0].is_whole)
        await client.leave()
        await asyncio.wait_for(client.site.left.wait(), WAIT_S)
        assert client.site.gone == ["r-1"]

    tell(story)


def test_garbage_behind_a_request_is_refused_once() -> None:
    """Where what follows a request is no HTTP, one refusal is the last thing that is said."""

    async def story(client: Client) -> None:
        await client.say(request("/whole") + b"\x00\x01 no request\r\n\r\n")
        check_refused(await client.hear_the_end())

    tell(story)


def test_what_waits_behind_garbage_is_not_begun() -> None:
    """A request that waits for its turn when the connection turns out to be broken is never served."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told") + NEXT + b"\x00\x01 no request\r\n\r\n")
        client.site.go.set()
        check_refused(await client.hear_the_end())
        await until(lambda: client.site.is_quiet)
        assert client.site.asked == ["/when-told"]

    tell(story)


def test_what_follows_the_last_request_is_passed_over() -> None:
    """After `connection: close` whatever comes is not for the server, and the reply is not disturbed by it."""

    async def story(client: Client) -> None:
        await client.say(request("/when-told", more="connection: close\r\n"))
        await client.say(NEXT + b"\x00\x01 no request\r\n\r\n")
        client.site.go.set()
        assert (await client.reply())[::2] == (b"HTTP/1.1 200 OK", WHOLE)
        assert await client.hear_the_end() == b""
        assert client.site.asked == ["/when-told"]

    tell(story)


@pytest.mark.parametrize("end", [b"0\r\nx-late: ", b"5;"], ids=["trailer", "extension"])
def test_what_is_no_body_is_bounded_behind_a_head_too(end: bytes) -> None:
    """A trailer or a chunk extension without end is refused when it is too large."""

    async def story(client: Client) -> None:
        await client.say(CHUNKED + b"3\r\none\r\n" + end)
        hearing = asyncio.create_task(client.hear_the_end())
        for _ in range(32):
            await client.say(b"x" * 32_768)
        check_refused(await hearing)

    tell(story)


def test_a_connection_that_was_lost_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered after the client has left keeps nothing of its connection, however long it took."""
    monkeypatch.setattr(connection, "HEAD_S", 0.02)

    async def story(client: Client) -> None:
        await client.say(request("/when-told"))
        await until(lambda: client.far_end()._timer is None)
        far_end = weakref.ref(client.far_end())
        await client.leave()
        client.site.go.set()
        await until(lambda: client.site.is_quiet)
        client.site.exchanges.clear()
        gc.collect()
        assert far_end() is None

    tell(story)
