"""Backpressure from the client to an upstream over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.answers import Answers
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay
from cadenza.upstreams.base import Ask
from cadenza.upstreams.openai import OpenAIUpstream
from tests.unit.gateway.client import WAIT_S, Client
from tests.unit.gateway.gateways import ROUTE
from tests.unit.gateway.prompts import prompt_of

TEXT_BYTES = 64 * 1024
EVENTS = 512  # far more than the buffers between the two ends can hold
LONG_ROUTE = msgspec.structs.replace(ROUTE, context_tokens=200_000, max_output_tokens=131_072)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
POLL_INTERVAL_S = 0.1


class PouringServer:
    """An upstream that writes a long stream as fast as it is read."""

    def __init__(self) -> None:
        self.written = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        event = b"data: %b\n\n" % msgspec.json.encode({"choices": [{"delta": {"content": "x" * TEXT_BYTES}}]})
        with contextlib.suppress(ConnectionError):
            while self.written < EVENTS:
                writer.write(event)
                await writer.drain()
                self.written += 1
            writer.write(END)
            await writer.drain()
        writer.close()

    async def until_stuck(self) -> None:
        """Return once it has not written anything for a while."""
        seen = -1
        while seen != self.written:
            seen = self.written
            await asyncio.sleep(POLL_INTERVAL_S)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[OpenAIUpstream]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        upstream = OpenAIUpstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        try:
            yield upstream
        finally:
            await upstream.stop()
            server.close()


async def test_an_upstream_over_http_is_not_read_while_the_client_is_congested() -> None:
    """It is stuck until the client reads again; then the client gets every byte."""
    server, client = PouringServer(), Client()
    client.stalls_at = lambda data: b"xxx" in data
    exchange, tokenizer = client.open(), Tokenizer()
    prompt = prompt_of(20, 200, tokenizer)
    meter = UsageMeter(prompt, 100)
    head = ReplyHead("chatcmpl-one", 1, "forte", Price(1_070, 3_450))
    relay = StreamRelay(exchange, Answers(exchange, "r1"), head, meter)
    async with asyncio.timeout(2 * WAIT_S), server.running() as upstream:
        reply = await upstream.open(LONG_ROUTE, Ask([], {}, None, stream=True))
        streaming = asyncio.create_task(relay.run(reply))
        await client.until_sent(b"xxx")
        await server.until_stuck()
        assert server.written < EVENTS
        assert not streaming.done()
        client.stalls_at = lambda _: False
        client.read_again()
        result = await streaming
        await reply.close()
    assert result.usage == Usage(9, 3)
    assert b"".join(client.sent).count(b"x" * TEXT_BYTES) == EVENTS
