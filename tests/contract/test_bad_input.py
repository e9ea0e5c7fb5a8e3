"""Malformed input is refused in the error shape, and the service keeps serving."""

import json
from collections.abc import Iterator

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient, Reply
from tests.service import Service

MIB = 2**20
DEEP = 1_000_000
GOOD = b'{"messages":[{"role":"user","content":"hi"}]}'

MALFORMED: dict[str, bytes] = {
    "truncated": GOOD[:-3],
    "two documents": GOOD + GOOD,
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
def still_serving(api: RawClient, upstream: LoopbackUpstream) -> Iterator[None]:
    """After each bad input a good request is served, and is the only one that reached the upstream."""
    yield
    assert api.post(GOOD).status == 200
    assert [request.json["messages"][1:] for request in upstream.requests] == [json.loads(GOOD)["messages"]]


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_body_is_400(api: RawClient, case: str) -> None:
    """A body that is not a JSON document is a 400 in the error shape."""
    reply = api.post(MALFORMED[case])
    reply.error(400)
    assert len(reply.body) < 1000


@pytest.mark.parametrize("case", BROKEN_HTTP)
def test_malformed_http_is_400(api: RawClient, case: str) -> None:
    """Malformed HTTP is a 400 in the error shape, and the connection is closed."""
    Reply(api.send_raw(BROKEN_HTTP[case])).error(400)


@pytest.mark.parametrize("case", BROKEN_CHUNKS)
def test_wrong_chunk_size_is_400(api: RawClient, case: str) -> None:
    """A chunked body with wrong sizes is a 400 in the error shape."""
    Reply(api.send_raw(_chunked_head(api) + BROKEN_CHUNKS[case])).error(400)


@pytest.mark.parametrize("case", UNFINISHED)
def test_incomplete_body_is_not_served(api: RawClient, case: str) -> None:
    """A client that sends less than it announced and disconnects gets no completion."""
    field, body = UNFINISHED[case]
    assert b"chatcmpl-" not in api.send_raw(api.head("POST", "/v1/chat/completions", field) + body, end=True)


def test_chunked_body_above_the_limit_is_413(api: RawClient) -> None:
    """A chunked body of more than 32 MiB is a 413 as well."""
    chunk = b"%x\r\n%b\r\n" % (MIB, b"x" * MIB)
    Reply(api.send_raw(_chunked_head(api) + chunk * 33 + b"0\r\n\r\n")).error(413)


def test_body_at_the_limit_is_read(api: RawClient) -> None:
    """A body of exactly 32 MiB is not a 413; this one is refused for its content."""
    api.post(_filled(32 * MIB)).error(400)


@pytest.mark.parametrize("key", [None, "sk-cdz-nobody"])
def test_large_body_with_an_unknown_key_is_401(service: Service, key: str | None) -> None:
    """The key is checked before the body: a large body with an unknown key is not read first."""
    stranger = RawClient(service.port, key)
    head = stranger.head("POST", "/v1/chat/completions", f"content-length: {33 * MIB}")
    Reply(stranger.send_raw(head)).error(401, "authentication_error")


def test_memory_comes_back_after_large_bad_bodies(service: Service, api: RawClient) -> None:
    """Twelve large bad bodies leave the process within 64 MiB of where it was."""
    bodies = [_filled(24 * MIB), MALFORMED["deep objects"], b'{"messages":[' + b'{"role":"user"},' * MIB]
    for body in bodies:
        api.post(body).error(400)
    before_bytes = service.process.rss_bytes
    for number in range(12):
        api.post(bodies[number % len(bodies)]).error(400)
    assert service.process.rss_bytes - before_bytes < 64 * MIB


def _filled(size: int) -> bytes:
    """A body of exactly this size that is valid JSON but an invalid request."""
    start, end = b'{"messages":[],"user":"', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


def _chunked_head(api: RawClient) -> bytes:
    return api.head("POST", "/v1/chat/completions", CHUNKED)
