"""Content and keys exist only in the memory of their own request: they are neither printed nor written."""

import json
from collections.abc import Iterator

import pytest

from tests.loopback import ROLE, Close, Good, Json, LoopbackUpstream, Reset, Sse, Status, said
from tests.raw_client import RawClient
from tests.service import PASSWORD, Service
from tests.service_config import ordinary_spec

CANARY = "zugzwang-canary-81"
ERROR = {"error": {"message": CANARY, "type": CANARY, "code": CANARY}}


@pytest.fixture(scope="module")
def used(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A stopped service that has handled the canary in every way that a request can take."""
    with Service(ordinary_spec(shared_upstream.base_url)) as service:
        api = RawClient(service.port, service.key)
        _serve_canaries(api, shared_upstream)
        _refuse_canaries(api)
        shared_upstream.reset()
        service.stop()
        yield service


def _serve_canaries(api: RawClient, upstream: LoopbackUpstream) -> None:
    for reply in (
        Good(CANARY),
        Status(500, CANARY.encode()),
        Status(400, json.dumps(ERROR).encode()),
        Status(401, json.dumps(ERROR).encode()),
        Status(429, CANARY.encode()),
        Status(200, CANARY.encode()),
        Json(ERROR),
        Sse([ERROR]),
        Sse([ROLE, said(CANARY), ERROR]),
        Sse([ROLE, said(CANARY), b"data: " + CANARY.encode() + b"\n\n"]),
        Sse([ROLE, said(CANARY), Reset()]),
        Sse([ROLE, said(CANARY), Close()]),
    ):
        upstream.always(reply)
        for stream in (False, True):
            api.chat(messages=[{"role": "user", "content": CANARY}], stream=stream, stop=CANARY, user=CANARY)
    upstream.always(Sse([ROLE, said(CANARY), *[said(CANARY * 100)] * 2000]))
    with api.open_chat(stream=True, messages=[{"role": "user", "content": CANARY}]) as connection:
        connection.recv(100)


def _refuse_canaries(api: RawClient) -> None:
    good = {"messages": [{"role": "user", "content": CANARY}]}
    for fields in (
        {"model": CANARY},
        {"temperature": CANARY},
        {"max_tokens": CANARY},
        {"tool_choice": CANARY},
        {"tools": CANARY},
        {"n": 2},
        {CANARY: 1},
        {"messages": CANARY},
        {"messages": [{"role": CANARY, "content": CANARY}]},
        {"messages": [{"role": "user", "content": [{"type": CANARY, CANARY: CANARY}]}]},
    ):
        api.post({**good, **fields})
    body = json.dumps(good).encode()
    for bad in (body[:-2], body + b"x", body.replace(b"-81", b"\xff"), CANARY.encode()):
        api.post(bad)
    api.send_raw(f"GET /{CANARY}\x00 HTTP/1.1\r\n\r\n".encode())


def _holding(service: Service, needle: str) -> list[str]:
    """The files that contain the needle."""
    return [path.name for path in service.files() if needle.encode() in path.read_bytes()]


def test_something_was_written(used: Service) -> None:
    """The process has printed and stored something, so that the search for the canary means something."""
    assert "cadenza.db" in [path.name for path in used.files()]
    assert used.output.count("request_id") > 20


def test_content_is_nowhere(used: Service) -> None:
    """No prompt, reply, refused body or upstream error is in the output or in any file."""
    assert CANARY not in used.output
    assert _holding(used, CANARY) == []


def test_key_is_nowhere(used: Service) -> None:
    """The key is in no file: only its digest is stored."""
    assert _holding(used, used.key) == []


def test_password_is_nowhere(used: Service) -> None:
    """The account's password is in no file."""
    assert _holding(used, PASSWORD) == []
