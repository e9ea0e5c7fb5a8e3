"""Streams are not buffered, a disconnect stops the upstream, and backpressure reaches the upstream."""

import socket

import openai
import pytest

from tests.loopback import ROLE, STOP, LoopbackUpstream, Pause, Raw, Sse, said
from tests.raw_client import RawClient, read_until
from tests.service import Service

MIB = 2**20


def test_first_chunk_arrives_before_the_second_is_sent(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """A chunk reaches the client before the upstream sends the next one."""
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
def test_leaving_before_the_reply_closes_the_upstream(
    api: RawClient, upstream: LoopbackUpstream, stream: bool, protocol: str
) -> None:
    """A client that disconnects while the upstream is silent has its upstream request closed."""
    pause = Pause()
    upstream.script(Raw([pause]))
    with api.open_chat(protocol, stream=stream):
        pause.wait_until_reached()
    upstream.wait_for_disconnect()


def test_leaving_mid_stream_closes_the_upstream(api: RawClient, upstream: LoopbackUpstream, protocol: str) -> None:
    """A client that disconnects mid-stream has its upstream request closed, even if the upstream is silent."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause]))
    with api.open_chat(protocol, stream=True) as connection:
        read_until(connection, b"first word")
    upstream.wait_for_disconnect()


def test_disconnect_does_not_disturb_another_stream(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream runs to its end while another client disconnects in the middle of its own."""
    leaving, staying = Pause(), Pause()
    upstream.script(Sse([ROLE, said("stay"), staying, said("ing"), STOP]), Sse([ROLE, said("leave"), leaving]))
    with api.open_chat(stream=True) as connection:
        read_until(connection, b"stay")
        with api.open_chat(stream=True) as other:
            read_until(other, b"leave")
        upstream.wait_for_disconnect()
        staying.release()
        assert b"ing" in read_until(connection, b"[DONE]")


def test_client_that_does_not_read_stops_the_upstream(
    service: Service, api: RawClient, upstream: LoopbackUpstream
) -> None:
    """A client that does not read stops the upstream: a 64 MiB stream is neither read nor kept in memory."""
    upstream.script(Sse([ROLE, said("loads the tokenizer"), STOP]), Sse([ROLE, *[said("x" * 16_384)] * 4096, STOP]))
    assert api.chat(stream=True).status == 200
    before_bytes = service.process.rss_bytes
    with api.open_chat(stream=True) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        read_until(connection, b"xxxx")
        assert upstream.wait_for_stall() < 12 * MIB
        assert service.process.rss_bytes - before_bytes < 32 * MIB
    upstream.wait_for_disconnect()
