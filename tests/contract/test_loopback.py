"""The scripted upstream does what its script says; every other test relies on it."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.loopback import (
    UPSTREAM_MODEL,
    USAGE,
    Close,
    Cut,
    Dribble,
    Good,
    Json,
    LoopbackUpstream,
    Pause,
    Raw,
    Reply,
    Reset,
    Sse,
    Status,
    chunk,
    said,
)
from tests.raw_client import read_all, read_until

ASKED = json.dumps({"model": "m", "messages": []}).encode()
STREAMED = json.dumps({"stream": True, "stream_options": {"include_usage": True}}).encode()


@pytest.fixture
def scripted() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


def port_of(upstream: LoopbackUpstream) -> int:
    return int(upstream.base_url.removesuffix("/v1").rpartition(":")[2])


def ask(upstream: LoopbackUpstream, body: bytes = ASKED) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(upstream), timeout=60)) as connection:
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        return response.status, response.read()


def dial(upstream: LoopbackUpstream, body: bytes = ASKED) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port_of(upstream)), 60)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def test_good_answers_in_the_requested_mode(scripted: LoopbackUpstream) -> None:
    """One reply serves both modes, and its stream carries the usage that was requested."""
    status, body = ask(scripted)
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == Good().text
    _, stream = ask(scripted, STREAMED)
    *events, done = stream.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(events[-1].removeprefix("data: "))["usage"] == USAGE


def test_script_is_used_once_then_the_default_answers(scripted: LoopbackUpstream) -> None:
    """Scripted replies come in order, each once; then the default answers."""
    scripted.always(Status(503))
    scripted.script(Status(418, b"tea"), Json({"a": 1}))
    assert [ask(scripted) for _ in range(3)] == [(418, b"tea"), (200, b'{"a": 1}'), (503, b"")]


def test_requests_are_recorded(scripted: LoopbackUpstream) -> None:
    """A request is recorded with its method, path, headers and body."""
    ask(scripted)
    request = scripted.wait_for_request()
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["content-length"] == str(len(ASKED))
    assert request.json == {"model": "m", "messages": []}
    scripted.reset()
    assert scripted.requests == []


def test_connections_are_kept_alive(scripted: LoopbackUpstream) -> None:
    """Two requests on one connection are both answered, and it counts as one."""
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(scripted), timeout=60)) as connection:
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", ASKED)
            connection.getresponse().read()
        assert scripted.open_connections == 1


def test_chunked_requests_are_read(scripted: LoopbackUpstream) -> None:
    """A request body without a length is read from its chunks."""
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(scripted), timeout=60)) as connection:
        connection.request("POST", "/v1/x", iter([ASKED[:5], ASKED[5:]]), encode_chunked=True)
        connection.getresponse().read()
    assert scripted.requests[0].body == ASKED


def test_pause_holds_until_released(scripted: LoopbackUpstream) -> None:
    """Nothing after a pause is written before the test releases it."""
    pause = Pause()
    scripted.script(Sse([said("one"), pause, said("two")]))
    with dial(scripted) as connection:
        seen = read_until(connection, b"one")
        pause.wait_until_reached()
        assert b"two" not in seen
        pause.release()
        assert b"[DONE]" in read_until(connection, b"0\r\n\r\n")


def test_disconnect_during_a_reply_is_noticed(scripted: LoopbackUpstream) -> None:
    """A peer that disconnects while a reply is paused counts as a disconnect."""
    pause = Pause()
    scripted.script(Raw([pause]))
    with dial(scripted):
        pause.wait_until_reached()
    scripted.wait_for_disconnect()


def test_close_after_a_reply_is_no_disconnect(scripted: LoopbackUpstream) -> None:
    """A peer that closes after its whole reply does not count as a disconnect."""
    ask(scripted)
    with pytest.raises(AssertionError):
        scripted.wait_for_disconnect(timeout_s=0.2)


def test_reset_breaks_the_connection(scripted: LoopbackUpstream) -> None:
    """A reset reaches the peer as a reset, after the bytes before it."""
    pause = Pause()
    scripted.script(Raw([b"HTTP/1.1 200 OK\r\n", pause, Reset()]))
    with dial(scripted) as connection:
        assert read_until(connection, b"OK\r\n")
        pause.release()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Cut(Status(200, b"0123456789"), 4), b"\r\n\r\n0123"),
        (Raw([b"as it stands", Close()]), b"as it stands"),
        (Dribble(Raw([b"one by one", Close()])), b"one by one"),
        (Cut(Sse([b"abc"], done=False, piece_bytes=1), 18), b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n"),
    ],
)
def test_replies_write_exact_bytes(scripted: LoopbackUpstream, reply: Reply, expected: bytes) -> None:
    """Cut, raw, dribbled and finely chunked replies write exactly these bytes."""
    scripted.script(reply)
    with dial(scripted) as connection:
        assert read_all(connection).endswith(expected)


def test_stall_is_noticed(scripted: LoopbackUpstream) -> None:
    """A peer that does not read stalls the writes, and the number of bytes is known."""
    scripted.script(Sse([said("x" * 65_536)] * 1024))
    with dial(scripted):
        assert 0 < scripted.wait_for_stall() < 16 * 2**20


def test_chunks_carry_marks() -> None:
    """Upstream chunks carry names of their own, so that a leak is noticed."""
    assert chunk()["model"] == UPSTREAM_MODEL
