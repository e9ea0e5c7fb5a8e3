"""Replies as they stand on the wire, and the bodies of the requests that they answer."""

import asyncio
import time
from email.utils import parsedate_to_datetime

import pytest

from tests.unit.http.raw_client import LAST_CHUNK, WAIT_S, RawClient, chunks, request
from tests.unit.http.testing_site import PIECE, WHOLE, Site, check_served

APPLICATION_LINES = [b"content-type: application/json", b"x-request-id: r-1"]


def without_date(lines: list[bytes]) -> list[bytes]:
    """The header lines but the date, which is there once and is now."""
    [date] = [line for line in lines if line.startswith(b"date: ")]
    assert abs(parsedate_to_datetime(date[6:].decode()).timestamp() - time.time()) < WAIT_S
    return sorted(line for line in lines if line != date)


async def test_a_whole_reply(client: RawClient) -> None:
    """A reply has its status line, the application's headers, the date, its length and its body, and nothing else."""
    await client.send(request("/whole"))
    status_line, lines, body = await client.reply()
    assert (status_line, body) == (b"HTTP/1.1 200 OK", WHOLE)
    assert without_date(lines) == sorted([*APPLICATION_LINES, b"content-length: 11"])


async def test_a_stream(client: RawClient) -> None:
    """A stream has a chunk for each write and the last chunk at its end, and no length."""
    await client.send(request("/stream"))
    status_line, lines, body = await client.reply()
    assert status_line == b"HTTP/1.1 200 OK"
    assert without_date(lines) == sorted([*APPLICATION_LINES, b"transfer-encoding: chunked"])
    assert chunks(body) == [b"one", b"two and a bit more", b"done", b""]


async def test_a_reply_without_content(client: RawClient) -> None:
    """A 204 has neither a length nor chunks, and the next request on the connection is answered."""
    await client.send(request("/no-content", method="OPTIONS") + request("/whole"))
    status_line, lines, _ = await client.reply()
    assert (status_line, without_date(lines)) == (b"HTTP/1.1 204 No Content", APPLICATION_LINES)
    assert (await client.reply())[2] == WHOLE


async def test_head_has_the_length_and_no_body(client: RawClient) -> None:
    """HEAD is answered with the head of the reply alone, and the next request on the connection is answered."""
    await client.send(request("/whole", method="HEAD"))
    head = await client.read_until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-length: 11\r\n" in head
    await check_served(client)


@pytest.mark.parametrize("path", ["/whole", "/stream", "/body", "/no-content"])
async def test_keep_alive(client: RawClient, path: str) -> None:
    """After a reply of any kind the connection serves the next request, many times over."""
    for number in range(5):
        await client.send(request(path, request_id=f"r-{number}"))
        _, lines, _ = await client.reply()
        assert b"x-request-id: r-%d" % number in lines
        assert b"connection: close" not in lines


@pytest.mark.parametrize(
    ("path", "more", "status", "is_announced"),
    [("/close", "", 503, True), ("/whole", "connection: close\r\n", 200, True), ("/abort-stream", "", 200, False)],
)
async def test_the_last_reply_of_a_connection(
    site: Site, client: RawClient, path: str, more: str, status: int, is_announced: bool
) -> None:
    """The connection closes after its last reply, which says so if that is known when it begins."""
    await client.send(request(path, more=more) + request("/whole"))
    status_line, lines, body = await client.reply()
    assert status_line.startswith(b"HTTP/1.1 %d " % status)
    assert (b"connection: close" in lines) == is_announced
    assert body
    assert await client.read_to_end() == b""
    assert site.paths == [path]


@pytest.mark.parametrize("size_bytes", [0, 1, 70_000, 300_000])
@pytest.mark.parametrize("parts", [1, 2, 5])
async def test_a_body_arrives_whole(client: RawClient, size_bytes: int, parts: int) -> None:
    """A body is read whole if it comes with its head, in parts after it, or is larger than one read."""
    body = bytes(place % 251 for place in range(size_bytes))
    sent = request("/body", body)
    step = len(sent) // parts + 1
    for start in range(0, len(sent), step):
        await client.send(sent[start : start + step])
    assert (await client.reply())[2] == body


async def test_backpressure(site: Site, client: RawClient) -> None:
    """A connection is congested while its client does not read, and drains once it does; nothing is lost."""
    await client.send(request("/fill"))
    await asyncio.wait_for(site.was_congested.wait(), WAIT_S)
    await client.read_until(b"\r\n\r\n")
    body = b""
    while not body.endswith(LAST_CHUNK):
        body += await client.read_some()
    assert site.pieces_sent > 0
    assert chunks(body) == [PIECE] * site.pieces_sent + [b"more", b"done", b""]
