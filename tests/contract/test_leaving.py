"""Streams as they flow: nothing is held back, one who leaves stops the upstream, one who does not read halts it."""

import socket

import openai
import pytest

from tests.contract.wire import Wire, read_until
from tests.loopback import LoopbackUpstream, Pause, Raw, Sse, chunk, http_head, said
from tests.service import Service

MIB = 2**20
ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")


def test_first_chunk_arrives_before_the_second_is_sent(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """A chunk reaches the client while the upstream still holds back the next one."""
    pauses = [Pause() for _ in range(3)]
    steps = [step for number, pause in enumerate(pauses) for step in (said(f"word{number} "), pause)]
    upstream.script(Sse([ROLE, *steps, STOP]))
    with client.chat.completions.create(
        model="forte", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        words = (choice.delta.content for part in stream for choice in part.choices if choice.delta.content)
        for number, pause in enumerate(pauses):
            assert next(words) == f"word{number} "
            pause.release()
        assert next(words, None) is None


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_reply_closes_the_upstream(wire: Wire, upstream: LoopbackUpstream, stream: bool) -> None:
    """A client that leaves while the upstream is silent has its upstream request closed at once."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with wire.open_chat(stream=stream):
        pause.wait_until_reached()
    upstream.wait_for_disconnect()


def test_leaving_between_head_and_body_closes_the_upstream(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A client that leaves while the upstream has sent only its head is noticed as well."""
    pause = Pause()
    upstream.script(Raw([http_head(200, {"content-type": "application/json", "content-length": "9"}), pause]))
    with wire.open_chat():
        pause.wait_until_reached()
    upstream.wait_for_disconnect()


def test_leaving_mid_stream_closes_the_upstream(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A client that leaves mid-stream has its upstream request closed at once, though the upstream says nothing."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause]))
    with wire.open_chat(stream=True) as connection:
        read_until(connection, b"first word")
    upstream.wait_for_disconnect()


def test_leaving_of_an_sdk_closes_the_upstream(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """Closing the SDK's stream is leaving."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause]))
    with client.chat.completions.create(
        model="forte", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        next(stream)
    upstream.wait_for_disconnect()


def test_one_that_leaves_does_not_disturb_another(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A stream goes on to its end while another client leaves in the middle of its own."""
    leaving, staying = Pause(), Pause()
    upstream.script(Sse([ROLE, said("stay"), staying, said("ing"), STOP]), Sse([ROLE, said("leave"), leaving]))
    with wire.open_chat(stream=True) as connection:
        read_until(connection, b"stay")
        with wire.open_chat(stream=True) as other:
            read_until(other, b"leave")
        upstream.wait_for_disconnect()
        staying.release()
        assert b"ing" in read_until(connection, b"[DONE]")


def test_client_that_does_not_read_stops_the_upstream(service: Service, wire: Wire, upstream: LoopbackUpstream) -> None:
    """A slow reader holds the upstream back: neither is a 64 MiB stream taken in, nor does memory grow by it."""
    upstream.script(Sse([ROLE, *[said("x" * 16_384)] * 4096, STOP]))
    before_bytes = service.rss_bytes()
    with wire.open_chat(stream=True) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        read_until(connection, b"xxxx")
        assert upstream.wait_for_stall(timeout_s=30) < 12 * MIB
        assert service.rss_bytes() - before_bytes < 32 * MIB
    upstream.wait_for_disconnect()


def test_slow_reader_gets_everything(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A reader that stops and goes on again has the whole stream in the end."""
    upstream.script(Sse([ROLE, *[said("x" * 16_384)] * 1024, said("the-end"), STOP]))
    with wire.open_chat(stream=True) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        read_until(connection, b"xxxx")
        upstream.wait_for_stall(timeout_s=30)
        tail = b""
        while b"[DONE]" not in tail:
            tail = tail[-4096:] + connection.recv(65_536)
        assert b"the-end" in tail
