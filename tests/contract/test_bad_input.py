"""Bytes that no good client sends: each is refused in the error shape, and the service goes on."""

import json
from collections.abc import Iterator

import pytest

from tests.contract.wire import Wire, parse_raw
from tests.loopback import LoopbackUpstream
from tests.service import Service

MIB = 2**20
DEEP = 1_000_000
GOOD = b'{"messages":[{"role":"user","content":"hi"}]}'

MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "blank": b"  \n",
    "open brace": b"{",
    "truncated": GOOD[:-3],
    "two documents": GOOD + GOOD,
    "trailing garbage": GOOD + b"x",
    "trailing comma": b'{"messages":[{"role":"user","content":"hi"}],}',
    "single quotes": GOOD.replace(b'"', b"'"),
    "NaN": GOOD[:-1] + b',"temperature":NaN}',
    "Infinity": GOOD[:-1] + b',"temperature":Infinity}',
    "NaN in an unknown field": GOOD[:-1] + b',"user":NaN}',
    "a number beyond floats": GOOD[:-1] + b',"temperature":1e999}',
    "invalid UTF-8 in content": GOOD.replace(b"hi", b"\xff\xfe"),
    "invalid UTF-8 in an unknown field": GOOD[:-1] + b',"user":"\xc3("}',
    "invalid UTF-8 in an unknown message field": GOOD.replace(b'"hi"', b'"hi","name":"\xed\xa0\x80"'),
    "UTF-16": GOOD.decode().encode("utf-16"),
    "lone surrogate in content": GOOD.replace(b"hi", b"\\ud800"),
    "lone surrogate the other way": GOOD.replace(b"hi", b"\\udc00 x"),
    "half a surrogate pair": GOOD.replace(b"hi", b"\\ud83c\\u0041"),
    "raw control character": GOOD.replace(b"hi", b"a\x00b"),
    "bad escape": GOOD.replace(b"hi", b"\\x41"),
    "form data": b"messages=hi&model=forte",
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    "deep messages": b'{"messages":' + b"[" * DEEP,
    "deep content": b'{"messages":[{"role":"user","content":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep unknown field": GOOD[:-1] + b',"user":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep unknown message field": GOOD.replace(b'"hi"', b'"hi","x":' + b"[" * DEEP + b"]" * DEEP),
    "deep tool_choice": GOOD[:-1] + b',"tool_choice":' + b"[" * DEEP + b"]" * DEEP + b"}",
}
BROKEN_HTTP: dict[str, bytes] = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
    "bad version": b"GET /v1/models HTTP/9.z\r\n\r\n",
    "bad method": b"G<T /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "header without a colon": b"GET /v1/models HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "bad content-length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ten\r\n\r\n",
    "negative content-length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    "two content-lengths": b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
}
BROKEN_CHUNKS: dict[str, bytes] = {
    "size is no number": b"zz\r\n" + GOOD + b"\r\n0\r\n\r\n",
    "size too small": b"5\r\n" + GOOD + b"\r\n0\r\n\r\n",
    "size beyond all integers": b"f" * 40 + b"\r\n" + GOOD + b"\r\n0\r\n\r\n",
}
CHUNKED = "transfer-encoding: chunked"
UNFINISHED: dict[str, tuple[str, bytes]] = {
    "one byte short": (f"content-length: {len(GOOD) + 1}", GOOD),
    "megabytes short": (f"content-length: {30 * MIB}", GOOD),
    "last chunk short": (CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD) + 50, GOOD)),
    "no last chunk": (CHUNKED, b"%x\r\n%b\r\n" % (len(GOOD), GOOD)),
}


@pytest.fixture(autouse=True)
def still_serving(wire: Wire, upstream: LoopbackUpstream) -> Iterator[None]:
    """After each bad input a good request is served, and is the only one that reached the upstream."""
    yield
    assert wire.post(GOOD).status == 200
    assert [request.json["messages"][1:] for request in upstream.requests] == [json.loads(GOOD)["messages"]]


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_body_is_400(wire: Wire, case: str) -> None:
    """A body that is not a JSON document is a 400 in the error shape."""
    reply = wire.post(MALFORMED[case])
    reply.error(400)
    assert len(reply.body) < 1000


@pytest.mark.parametrize("field", ["user", "metadata"])
def test_lone_surrogate_in_a_dropped_field_harms_nobody(wire: Wire, upstream: LoopbackUpstream, field: str) -> None:
    """A lone surrogate outside the conversation is refused or dropped, and never an internal error."""
    reply = wire.post(GOOD[:-1] + b',"%b":"\\ud800"}' % field.encode())
    assert reply.status in {200, 400}
    assert all(b"ud800" not in request.body for request in upstream.requests)
    upstream.reset()


@pytest.mark.parametrize("case", BROKEN_HTTP)
def test_malformed_http_is_400(wire: Wire, case: str) -> None:
    """What is not HTTP is a 400 in the error shape, and the connection ends."""
    parse_raw(wire.send_raw(BROKEN_HTTP[case])).error(400)


@pytest.mark.parametrize("case", BROKEN_CHUNKS)
def test_lie_about_a_chunk_is_400(wire: Wire, case: str) -> None:
    """A chunked body that lies about its sizes is a 400 in the error shape."""
    parse_raw(wire.send_raw(_chunked_head(wire) + BROKEN_CHUNKS[case])).error(400)


@pytest.mark.parametrize("case", UNFINISHED)
def test_body_that_never_comes_is_not_served(wire: Wire, case: str) -> None:
    """A client that promises more than it sends, and leaves, is not answered with a completion."""
    field, body = UNFINISHED[case]
    assert b"chatcmpl-" not in wire.send_raw(wire.head("POST", "/v1/chat/completions", field) + body, end=True)


def test_body_above_the_limit_is_413(wire: Wire) -> None:
    """A body of more than 32 MiB is a 413, known by its length before it is read."""
    wire_bytes = wire.chat_bytes(_filled(33 * MIB))
    parse_raw(wire.send_raw(wire_bytes)).error(413)


def test_chunked_body_above_the_limit_is_413(wire: Wire) -> None:
    """A body of more than 32 MiB that does not say its length is a 413 as well."""
    chunk = b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)
    parse_raw(wire.send_raw(_chunked_head(wire) + chunk * 33 + b"0\r\n\r\n")).error(413)


def test_body_at_the_limit_is_read(wire: Wire) -> None:
    """A body of exactly 32 MiB is no 413; this one is refused for what it says."""
    wire.post(_filled(32 * MIB)).error(400)


def test_chunked_body_is_served(wire: Wire, upstream: LoopbackUpstream) -> None:
    """An honest chunked body is as good as one with a length."""
    middle = len(GOOD) // 2
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (GOOD[:middle], GOOD[middle:]))
    assert parse_raw(wire.send_raw(_chunked_head(wire) + parts + b"0\r\n\r\n")).status == 200
    upstream.reset()


@pytest.mark.parametrize("key", [None, "sk-cdz-nobody"])
def test_large_body_of_a_stranger_is_401(service: Service, key: str | None) -> None:
    """The key is checked before the body: a stranger's large body is not read to the end first."""
    stranger = Wire(service.port, key)
    head = stranger.head("POST", "/v1/chat/completions", f"content-length: {33 * MIB}")
    parse_raw(stranger.send_raw(head)).error(401, "authentication_error")


def test_large_headers_are_refused(wire: Wire) -> None:
    """A request line or header of a megabyte is cut off, not collected."""
    raw = wire.send_raw(wire.head("GET", "/v1/models", "x-long: " + "a" * MIB))
    assert b'"object":"list"' not in raw


def test_memory_comes_back_after_large_bad_bodies(service: Service, wire: Wire) -> None:
    """Twenty large bad bodies leave the process within 64 MiB of where it was."""
    bodies = [_filled(24 * MIB), MALFORMED["deep objects"], b'{"messages":[' + b'{"role":"user"},' * MIB]
    for body in bodies:
        wire.post(body).error(400)
    before_bytes = service.rss_bytes()
    for number in range(20):
        wire.post(bodies[number % len(bodies)]).error(400)
    assert service.rss_bytes() - before_bytes < 64 * MIB


def _filled(size: int) -> bytes:
    """A body of exactly this size that is good JSON and a bad request."""
    start, end = b'{"messages":[],"user":"', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


def _chunked_head(wire: Wire) -> bytes:
    return wire.head("POST", "/v1/chat/completions", CHUNKED)
