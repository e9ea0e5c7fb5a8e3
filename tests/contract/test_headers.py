"""The headers of every reply: request ids, retries, streams and browsers."""

import re

import pytest

from tests.loopback import LoopbackUpstream, Status
from tests.raw_client import MESSAGES, RawClient, Reply
from tests.service import Service

CHAT = {"messages": MESSAGES}
BROWSER_HEADERS = "authorization,content-type,x-stainless-os,x-stainless-retry-count,x-something-new"


def replies(api: RawClient, upstream: LoopbackUpstream, headers: dict[str, str]) -> dict[str, Reply]:
    """One reply of each kind."""
    upstream.script(Status(500))
    return {
        "502": api.post(CHAT, headers),
        "200": api.post(CHAT, headers),
        "stream": api.post({**CHAT, "stream": True}, headers),
        "models": api.get("/v1/models", headers),
        "400": api.post(b"{", headers),
        "404": api.get("/v1/nothing", headers),
        "405": api.get("/v1/chat/completions", headers),
        "401": RawClient(api.port, None).post(CHAT, headers),
    }


def test_every_reply_has_a_request_id(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Each reply has its own x-request-id if the client sent none."""
    ids = [reply.headers["x-request-id"] for reply in replies(api, upstream, {}).values()]
    assert all(re.fullmatch(r"[\w.-]{8,}", request_id) for request_id in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("sane", ["abc-123", "req_0f9D", "d2719f1e-9d5c-4b5e-8a51-2f0ad1a8d9a1"])
def test_valid_request_id_is_echoed(api: RawClient, upstream: LoopbackUpstream, sane: str) -> None:
    """Every reply carries the request id that the client sent."""
    echoed = [reply.headers["x-request-id"] for reply in replies(api, upstream, {"x-request-id": sane}).values()]
    assert set(echoed) == {sane}


@pytest.mark.parametrize(
    "insane", [b"x" * 10_000, b"", b"a b", b"a\tb", b'"><script>', "é".encode(), b"\x80\xff", b"a,b;c"]
)
def test_invalid_request_id_is_replaced(api: RawClient, insane: bytes) -> None:
    """A request id that is too long or has other characters is replaced by a new one."""
    field = "x-request-id: " + insane.decode("latin-1")
    reply = Reply(api.send_raw(api.head("GET", "/v1/models", field)))
    assert reply.status == 200
    assert re.fullmatch(r"[\w.-]{8,128}", reply.headers["x-request-id"])


@pytest.mark.parametrize("injected", [b"a\rx-evil: 1", b"a\nx-evil: 1", b"a\x00b", b"a\r\n x-evil: 1"])
def test_request_id_cannot_inject(api: RawClient, injected: bytes) -> None:
    """Line ends and NUL in a request id are never sent back."""
    head = api.head("GET", "/v1/models", "x-request-id: MARK")
    raw = api.send_raw(head.replace(b"MARK", injected))
    reply = Reply(raw)
    assert reply.status in {200, 400}
    assert "x-evil" not in reply.headers
    assert b"evil" not in raw
    assert b"\x00" not in raw


def test_errors_say_whether_a_retry_can_help(api: RawClient, upstream: LoopbackUpstream) -> None:
    """An error that would occur again has x-should-retry: false; others do not."""
    got = replies(api, upstream, {})
    assert {kind for kind, reply in got.items() if reply.headers.get("x-should-retry") == "false"} == {
        "400",
        "401",
        "404",
        "405",
    }


def test_content_types(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream is an event stream, everything else is JSON."""
    for kind, reply in replies(api, upstream, {}).items():
        expected = "text/event-stream" if kind == "stream" else "application/json"
        assert reply.headers["content-type"].partition(";")[0] == expected


def test_only_streams_may_be_kept(api: RawClient, upstream: LoopbackUpstream) -> None:
    """No cache stores a reply of the API, which may have answers or balances. Streams have their own words for it."""
    found = {kind: reply.headers["cache-control"] for kind, reply in replies(api, upstream, {}).items()}
    assert found.pop("stream") == "no-cache, no-transform"
    assert set(found.values()) == {"no-store"}
    assert api.request("OPTIONS", "/v1/models", None, {"origin": "null"}).headers["cache-control"] == "no-store"


def test_streams_forbid_buffering(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream tells proxies not to cache, change or buffer it, and is never compressed."""
    headers = api.post({**CHAT, "stream": True}, {"accept-encoding": "gzip, br"}).headers
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers


def test_accept_header_does_not_change_a_stream(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A client that accepts only JSON and requests a stream gets the stream."""
    reply = api.post({**CHAT, "stream": True}, {"accept": "application/json"})
    assert reply.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/models/forte"])
@pytest.mark.parametrize("origin", ["https://app.example", "http://localhost:3000", "null"])
def test_preflight_is_answered(service: Service, path: str, origin: str) -> None:
    """A browser's preflight needs no key and gets back the headers that it requested, without credentials."""
    asked = {
        "origin": origin,
        "access-control-request-method": "POST" if "chat" in path else "GET",
        "access-control-request-headers": BROWSER_HEADERS,
    }
    reply = RawClient(service.port, None).request("OPTIONS", path, None, asked)
    assert reply.status in {200, 204}
    assert reply.headers["access-control-allow-origin"] in {"*", origin}
    assert asked["access-control-request-method"] in reply.headers["access-control-allow-methods"]
    allowed = {name.strip().lower() for name in reply.headers["access-control-allow-headers"].split(",")}
    assert allowed >= set(BROWSER_HEADERS.split(","))
    assert "access-control-allow-credentials" not in reply.headers


def test_preflight_cannot_inject(api: RawClient) -> None:
    """Requested headers are reflected only if they are a list of header names."""
    fields = ["origin: https://app.example", "access-control-request-method: POST"]
    head = api.head("OPTIONS", "/v1/models", *fields, "access-control-request-headers: a, b<script>; c=1\x01")
    raw = api.send_raw(head)
    assert b"script" not in raw
    assert b"\x01" not in raw


def test_every_reply_allows_any_origin(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Every reply, errors too, allows any origin."""
    for reply in replies(api, upstream, {"origin": "https://app.example"}).values():
        assert reply.headers["access-control-allow-origin"] in {"*", "https://app.example"}
        assert "access-control-allow-credentials" not in reply.headers
