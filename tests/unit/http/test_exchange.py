"""One exchange over a wire in memory: bounds on the body, the client's leaving, the answer and its headers."""

import asyncio
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import BodyTimeout, BodyTooLarge, InvalidRequest, RateLimited
from cadenza.http.exchange import (
    BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    JSON,
    UNREAD_BYTES_MAX,
    ClientGone,
    Exchange,
    Uploads,
)
from tests.unit.gateway.clients import WAIT_S, Client, Headers, let_tasks_run

MIB = 1024 * 1024
SHORT_S = 0.1


def hurried(client: Client, headers: Headers | None = None) -> Exchange:
    """A exchange whose body must come soon."""
    exchange = client.exchange(headers)
    exchange.body_s = SHORT_S
    return exchange


async def in_time(exchange: Exchange) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await exchange.body(Uploads())


async def test_a_body_is_its_parts_in_order() -> None:
    """A body in several parts, empty ones among them, is put together as it was sent."""
    client = Client()
    for part in (b"one ", b"", b"two"):
        client.say(part, more=True)
    client.say(b"")
    assert await in_time(client.exchange()) == b"one two"


async def test_large_bodies_share_a_bounded_memory() -> None:
    """Where the bodies of others fill it, one more is told to come back, and is taken once they are gone."""
    uploads = Uploads()
    uploads.take(BODIES_BYTES_MAX - 2)
    exchange = Client().exchange()
    exchange.feed(b"abc")
    exchange.end_body()
    with pytest.raises(RateLimited):
        await exchange.body(uploads)
    assert exchange.body_bytes == 0
    uploads.give_back(1)
    assert await exchange.body(uploads) == b"abc"
    assert exchange.body_bytes == 3


async def test_a_request_without_a_body_has_an_empty_one() -> None:
    """Where nothing came and nothing will, the body is there at once, and no more of it is wanted."""
    client = Client()
    exchange = client.exchange()
    exchange.end_body()
    assert await in_time(exchange) == b""
    assert client.reads == 0


async def test_a_body_that_is_there_already_is_not_waited_for() -> None:
    """What came before anyone asked is put together in its order, and counted."""
    client = Client()
    exchange = client.exchange([(b"content-length", b"7")])
    for part in (b"one ", b"two"):
        assert exchange.feed(part)
    exchange.end_body()
    assert await in_time(exchange) == b"one two"
    assert (exchange.body_bytes, client.reads) == (7, 0)


def test_of_an_unread_body_only_so_much_is_wanted() -> None:
    """Past 64 KiB that nobody has read the wire is told to wait."""
    exchange = Client().exchange()
    assert [exchange.feed(bytes(32 * 1024)) for _ in range(3)] == [True, True, False]


async def test_what_was_read_makes_room_for_more() -> None:
    """A reader that has taken what came lets the next part in."""
    client = Client()
    exchange = client.exchange()
    exchange.feed(bytes(UNREAD_BYTES_MAX + 1))
    reading = asyncio.create_task(in_time(exchange))
    await let_tasks_run()
    assert client.reads == 1
    assert exchange.feed(bytes(UNREAD_BYTES_MAX))
    exchange.end_body()
    assert len(await reading) == 2 * UNREAD_BYTES_MAX + 1


@pytest.mark.parametrize("length", [b"33554433", b"999999999999999999999999"])
async def test_a_length_past_the_limit_is_refused_unread(length: bytes) -> None:
    """A body that announces itself as too large is refused before a byte of it is read."""
    client = Client()
    with pytest.raises(BodyTooLarge, match="32 MiB"):
        await in_time(client.exchange([(b"content-length", length)]))
    assert client.reads == 0


@pytest.mark.parametrize("length", [None, b"2", b"-1", b"many", b""])
async def test_a_body_is_counted_whatever_it_announces(length: bytes | None) -> None:
    """A body without a length, or with a false one, is refused as soon as it is past the limit."""
    client = Client()
    part = bytes(MIB)
    for _ in range(40):
        client.say(part, more=True)
    with pytest.raises(BodyTooLarge, match="32 MiB"):
        await in_time(client.exchange([] if length is None else [(b"content-length", length)]))
    assert client.reads == BODY_BYTES_MAX // MIB + 1


async def test_a_body_of_just_the_limit_is_taken() -> None:
    """32 MiB to the byte are taken, announced or not."""
    client = Client()
    part = bytes(MIB)
    for _ in range(BODY_BYTES_MAX // MIB - 1):
        client.say(part, more=True)
    client.say(part)
    assert len(await in_time(client.exchange([(b"content-length", b"33554432")]))) == BODY_BYTES_MAX


async def test_a_body_that_stops_coming_is_cut() -> None:
    """A client that sends a part and then nothing gets 408, with how far it came, and is hung up on."""
    client = Client()
    client.say(b"x" * 1500, more=True)
    exchange = hurried(client)
    with pytest.raises(BodyTimeout, match="after 1,500 bytes"):
        await in_time(exchange)
    assert not exchange.keeps_alive


async def test_a_trickle_is_cut() -> None:
    """A byte now and then does not hold a request open: what comes too slowly gets 408."""
    client = Client()
    client.pause_s = SHORT_S / 10
    for _ in range(1000):
        client.say(b"x", more=True)
    with pytest.raises(BodyTimeout):
        await in_time(hurried(client))
    assert client.reads > 1


async def test_a_slow_but_steady_body_passes() -> None:
    """A body that takes longer than a small one may is taken while it keeps coming."""
    client = Client()
    client.pause_s = SHORT_S / 2
    for place in range(4):
        client.say(bytes(MIB), more=place < 3)
    started_s = asyncio.get_running_loop().time()
    assert len(await in_time(hurried(client))) == 4 * MIB
    assert asyncio.get_running_loop().time() - started_s > SHORT_S


async def test_a_client_that_leaves_while_it_sends_is_gone() -> None:
    """A client that is lost amid its body sent no bad request: nobody is there to tell."""
    client = Client()
    client.say(b'{"mess', more=True)
    client.leave()
    with pytest.raises(ClientGone):
        await in_time(client.exchange())


class Work:
    """Something that runs until its client leaves, in a task of its own."""

    def __init__(self, exchange: Exchange) -> None:
        self.has_begun = asyncio.Event()
        self.was_cancelled = False
        self.task = exchange.task = asyncio.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        async with exchange.until_gone():
            self.has_begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise


async def test_a_client_that_leaves_ends_the_work() -> None:
    """What runs is cancelled at once, ClientGone comes out, and no cancellation is left behind."""
    client = Client()
    work = Work(client.exchange())
    await work.has_begun.wait()
    client.leave()
    with pytest.raises(ClientGone):
        await work.task
    assert work.was_cancelled
    assert work.task.cancelling() == 0


async def test_late_parts_of_a_body_are_not_a_leaving() -> None:
    """Only the loss of the connection ends the work; what else comes does not."""
    client = Client()
    exchange = client.exchange()
    work = Work(exchange)
    await work.has_begun.wait()
    exchange.feed(b"late")
    exchange.end_body()
    await let_tasks_run()
    assert not work.task.done()
    client.leave()
    with pytest.raises(ClientGone):
        await work.task


async def test_a_foreign_cancellation_is_let_through() -> None:
    """A cancellation that is not the client's stays a cancellation."""
    work = Work(Client().exchange())
    await work.has_begun.wait()
    work.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.task


async def test_a_foreign_cancellation_wins_over_a_leaving_client() -> None:
    """Cancelled while the client leaves as well, the task ends as cancelled."""
    client = Client()
    work = Work(client.exchange())
    await work.has_begun.wait()
    await let_tasks_run()
    client.leave()
    work.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.task


async def test_a_timeout_inside_is_not_a_leaving() -> None:
    """The work's own timeout comes out as what it is."""
    with pytest.raises(TimeoutError):
        async with Client().exchange().until_gone(), asyncio.timeout(0.01):
            await asyncio.Event().wait()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_after_the_end_disturbs_nothing(*, is_stream: bool) -> None:
    """Once the reply is finished, what is still to be done is done, client or no client."""
    client = Client()
    exchange = client.exchange()
    is_done = False
    async with exchange.until_gone():
        if is_stream:
            exchange.start_stream()
            exchange.finish_stream(b"data: [DONE]\n\n", is_cut=False)
        else:
            exchange.respond(200, b"{}", JSON)
        client.leave()
        await let_tasks_run()
        is_done = True
    assert is_done


async def test_nobody_listens_for_the_client_afterwards() -> None:
    """The watch ends with the work: a client that leaves after it cancels nothing."""
    client = Client()
    exchange = client.exchange()
    exchange.task = asyncio.current_task()
    async with exchange.until_gone():
        await let_tasks_run()
    client.leave()
    await let_tasks_run()
    assert exchange.is_gone
    assert exchange.task
    assert exchange.task.cancelling() == 0


async def test_who_watches_too_late_learns_at_once_that_the_client_left() -> None:
    """The work of a client that is gone does not begin."""
    client = Client()
    exchange = client.exchange()
    client.leave()
    has_begun = False
    with pytest.raises(ClientGone):
        async with exchange.until_gone():
            has_begun = True
    assert not has_begun


async def test_an_error_inside_comes_out_as_it_is() -> None:
    """Errors of the work pass through the watch unchanged."""
    with pytest.raises(InvalidRequest, match="mine"):
        async with Client().exchange().until_gone():
            raise InvalidRequest("mine")


SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


@pytest.mark.parametrize("sane", [b"a", b"req_123", b"trace:1/2@host.example", b"QUJD+/=", b"x" * 128])
def test_a_sane_request_id_is_kept(sane: bytes) -> None:
    """A client's own id comes back to it."""
    assert Client().exchange([(b"x-request-id", sane)]).request_id == sane.decode()


@pytest.mark.parametrize(
    "insane", [b"", b" ", b"a b", b"a\nb", b"a\n", "é".encode(), b"x" * 129, b'"', b"<b>", b"\x00"]
)
def test_an_insane_request_id_is_replaced(insane: bytes) -> None:
    """An id that could harm a log or a header is not repeated."""
    assert re.fullmatch(r"req_[A-Za-z0-9_-]{24}", Client().exchange([(b"x-request-id", insane)]).request_id)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=140))
def test_a_request_id_is_always_sane(incoming: bytes) -> None:
    """Whatever comes in, the id is sane, and is the client's own exactly where that is sane."""
    request_id = Client().exchange([(b"x-request-id", incoming)]).request_id.encode()
    assert SANE.fullmatch(request_id)
    assert (request_id == incoming) == bool(SANE.fullmatch(incoming))


def test_request_ids_of_our_own_differ() -> None:
    """No two requests without an id share one."""
    assert len({Client().exchange().request_id for _ in range(100)}) == 100


def test_of_a_repeated_header_the_first_counts() -> None:
    """A header that was sent twice cannot be used to smuggle another value in."""
    exchange = Client().exchange([(b"x-api-key", b"first"), (b"other", b"1"), (b"x-api-key", b"second")])
    assert exchange.headers == {b"x-api-key": b"first", b"other": b"1"}


def test_an_answer_has_its_length_and_its_request_id() -> None:
    """An answer is one write: the status, the headers that every answer has, and the whole body."""
    client = Client()
    exchange = client.exchange([(b"x-request-id", b"r1")])
    exchange.respond(200, b'{"a":1}', JSON)
    assert len(client.sent) == 1
    assert client.status == exchange.status == 200
    assert client.headers[b"content-type"] == b"application/json"
    assert client.headers[b"content-length"] == b"7"
    assert client.headers[b"x-request-id"] == b"r1"
    assert client.headers[b"access-control-allow-origin"] == b"*"
    assert client.bodies == [b'{"a":1}']
    assert client.was_kept


def test_an_answer_without_content_has_no_length() -> None:
    """204 carries no content-length, as HTTP has it."""
    client = Client()
    client.exchange().respond(204, b"", b"")
    assert b"content-length" not in client.headers


async def test_a_stream_is_neither_cached_nor_buffered() -> None:
    """The headers of a stream keep caches, compressors and proxies off it; its end is in its last write."""
    client = Client()
    exchange = client.exchange()
    exchange.start_stream()
    await exchange.write(b"one")
    assert not client.has_end
    exchange.finish_stream(b"two", is_cut=False)
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    assert client.headers[b"cache-control"] == b"no-cache, no-transform"
    assert client.headers[b"x-accel-buffering"] == b"no"
    assert b"content-length" not in client.headers
    assert (client.bodies, client.has_end) == ([b"one", b"two"], True)
    assert len(client.sent) == 3
    assert client.was_kept


def test_a_stream_that_was_cut_ends_with_its_connection() -> None:
    """The last bytes are sent, and no further request follows them."""
    client = Client()
    exchange = client.exchange()
    exchange.start_stream()
    exchange.finish_stream(b"error", is_cut=True)
    assert client.bodies == [b"error"]
    assert client.was_kept is False


def test_an_old_client_has_a_stream_without_chunks() -> None:
    """HTTP/1.0 knows no chunks: the bytes come as they are, and the end of the connection is their end."""
    client = Client()
    exchange = client.exchange(is_old=True)
    exchange.start_stream()
    assert exchange.write_now(b"one")
    exchange.finish_stream(b"two", is_cut=False)
    assert b"transfer-encoding" not in client.headers
    assert client.headers[b"connection"] == b"close"
    assert client.bodies == [b"onetwo"]
    assert client.was_kept is False


async def test_a_write_waits_for_a_client_that_does_not_read() -> None:
    """Back-pressure: a write returns only when the client can take more."""
    client = Client()
    client.stalls_at = lambda data: b"one" in data
    exchange = client.exchange()
    exchange.start_stream()
    writing = asyncio.create_task(exchange.write(b"one"))
    await client.sent_body(b"one")
    await let_tasks_run()
    assert not writing.done()
    assert not exchange.write_now(b"two")
    client.take_more()
    await writing


def test_an_error_is_rendered_with_its_headers() -> None:
    """A failure is answered with its status, the error object and what it says of a retry."""
    client = Client()
    client.exchange().fail(RateLimited("Later.", 2.0))
    assert client.status == 429
    assert (client.headers[b"retry-after"], client.headers[b"retry-after-ms"]) == (b"2", b"2000")
    assert msgspec.json.decode(client.bodies[0]) == {"error": {"message": "Later.", "type": "rate_limit_error"}}


def test_a_call_that_was_never_answered_counts_as_a_client_gone() -> None:
    """Until an answer begins, the status for the log is that of a client that left."""
    assert Client().exchange().status == 499


async def test_a_length_of_thousands_of_digits_is_refused_as_too_large() -> None:
    """An absurd content-length is refused like any that is past the limit."""
    with pytest.raises(BodyTooLarge):
        await in_time(Client().exchange([(b"content-length", b"9" * 5000)]))
