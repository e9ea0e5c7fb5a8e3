"""However the bytes of good requests are split on the way, the replies are the same."""

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.http.exchange import Request
from cadenza.http.request_parser import Progress, RequestParser
from tests.unit.http.raw_client import LAST_CHUNK, Reply, request
from tests.unit.http.testing_site import WHOLE, Site

STREAMED = b"3\r\none\r\n12\r\ntwo and a bit more\r\n4\r\ndone\r\n" + LAST_CHUNK
REPLIES = {"/whole": WHOLE, "/stream": STREAMED, "/no-content": b""}
MORE_HEADERS = ["", "X-Long: " + "x" * 300 + "\r\n", "Expect: nothing\r\n", "x-twice: 1\r\nx-twice: 2\r\n"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, str, list[int]]:
    """A path, a body, more headers, and the sizes of the body's chunks if it has any."""
    body = draw(st.binary(max_size=200))
    sizes = draw(st.lists(st.integers(1, 90), max_size=4))
    return draw(st.sampled_from(["/body", *REPLIES])), body, draw(st.sampled_from(MORE_HEADERS)), sizes


def encode(path: str, body: bytes, more: str, sizes: list[int], number: int) -> bytes:
    """With a length, or in chunks of these sizes and one for the rest."""
    if not sizes:
        return request(path, body, request_id=f"r-{number}", more=more)
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\nx-request-id: r-{number}\r\n{more}transfer-encoding: chunked\r\n\r\n"
    chunks, rest = list[bytes](), body
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, rest] if chunk]
    return head.encode() + b"".join(parts) + LAST_CHUNK


async def replies_to(parts: list[bytes], count: int) -> list[Reply]:
    async with Site() as site:
        client = await site.connect()
        for part in parts:
            await client.send(part)
        return [await client.reply() for _ in range(count)]


@settings(derandomize=True)
@given(st.lists(requests(), min_size=1, max_size=6), st.data())
def test_any_split_gives_the_same_replies(sent: list[tuple[str, bytes, str, list[int]]], data: st.DataObject) -> None:
    """Pipelined requests, split anywhere, are answered one by one in their order, each with its own body."""
    encoded = b"".join(encode(*one, number) for number, one in enumerate(sent))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(encoded) - 1), max_size=12)))
    parts = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    replies = uvloop.run(replies_to(parts, len(sent)))
    for number, ((path, body, *_), (status_line, lines, received)) in enumerate(zip(sent, replies, strict=True)):
        assert status_line == (b"HTTP/1.1 204 No Content" if path == "/no-content" else b"HTTP/1.1 200 OK")
        assert b"x-request-id: r-%d" % number in lines
        assert received == REPLIES.get(path, body)


@st.composite
def like_requests(draw: st.DrawFn) -> tuple[bytes, str, bytes]:
    """A body, the way the length is written, and the value of a header: most have the same head but for the length."""
    return (
        draw(st.binary(max_size=120)),
        draw(st.sampled_from(["content-length: {}", "Content-Length:{}", "content-length:  0{} "])),
        draw(st.sampled_from([b"a", b"b"])),
    )


@settings(derandomize=True)
@given(st.lists(like_requests(), min_size=2, max_size=8), st.data())
def test_heads_that_are_alike(sent: list[tuple[bytes, str, bytes]], data: st.DataObject) -> None:
    """Requests whose heads differ little, split anywhere, are each answered by their own header and body."""
    encoded = b"".join(
        b"POST /body HTTP/1.1\r\nhost: here\r\n%b\r\nx-request-id: %b\r\n\r\n%b"
        % (written.format(len(body)).encode(), value, body)
        for body, written, value in sent
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(encoded) - 1), max_size=4)))
    parts = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    for (body, _, value), (_, lines, received) in zip(sent, uvloop.run(replies_to(parts, len(sent))), strict=True):
        assert b"x-request-id: " + value in lines
        assert received == body


class IgnoringReceiver:
    """Takes what a parser has read, and does nothing with it."""

    def receive_head(self, request: Request, whole: bytes = b"") -> None: ...

    def receive_body(self, data: bytes) -> None: ...

    def receive_end(self) -> None: ...


def test_input_that_waits_is_not_copied() -> None:
    """A large read of many small pieces takes many turns, and none of them copies the rest."""
    parser = RequestParser(IgnoringReceiver(), head_bytes_max=1024)
    body = (b"x" * 28 + b"\r\n\r\n") * 100
    parser.read(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b" % (len(body), body))
    arrived, turns = parser.input.data, 0
    while parser.read() is Progress.TURN_ENDED:
        assert parser.input.data is arrived
        turns += 1
    assert turns > 10
