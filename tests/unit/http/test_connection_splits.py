"""However the bytes of good requests are cut on their way, they are the same requests with the same replies."""

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.http.visits import LAST_CHUNK, WHOLE, Reply, Site, request, visiting

STREAMED = b"3\r\none\r\n12\r\ntwo and a bit more\r\n4\r\ndone\r\n" + LAST_CHUNK
REPLIES = {"/whole": WHOLE, "/stream": STREAMED, "/none": b""}
MORE = ["", "X-Long: " + "x" * 300 + "\r\n", "Expect: nothing\r\n", "x-twice: 1\r\nx-twice: 2\r\n"]


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, bytes, str, list[int]]:
    """A path, a body, more headers, and the sizes of its chunks where it has some."""
    body = draw(st.binary(max_size=200))
    sizes = draw(st.lists(st.integers(1, 90), max_size=4))
    return draw(st.sampled_from(["/body", *REPLIES])), body, draw(st.sampled_from(MORE)), sizes


def said_as(path: str, body: bytes, more: str, sizes: list[int], number: int) -> bytes:
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
    async with visiting(Site()) as connect:
        client = await connect()
        for part in parts:
            await client.say(part)
        return [await client.reply() for _ in range(count)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(asked(), min_size=1, max_size=6), st.data())
def test_any_split_has_the_same_replies(requests: list[tuple[str, bytes, str, list[int]]], data: st.DataObject) -> None:
    """Requests that come at once, cut anywhere, are answered one by one in their order, each with its own body."""
    said = b"".join(said_as(*one, number) for number, one in enumerate(requests))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(said) - 1), max_size=12)))
    parts = [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    replies = uvloop.run(replies_to(parts, len(requests)))
    for number, ((path, body, *_), (first, lines, heard)) in enumerate(zip(requests, replies, strict=True)):
        assert first == (b"HTTP/1.1 204 No Content" if path == "/none" else b"HTTP/1.1 200 OK")
        assert b"x-request-id: r-%d" % number in lines
        assert heard == REPLIES.get(path, body)
