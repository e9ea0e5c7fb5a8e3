"""The upstream behind every gateway: it sends prebuilt chat completions, at a cost of a few µs each.

Runs in its own process: `python -m bench.upstream PORT`. It validates nothing; a tag in the prompt selects the reply
(bench/workload.py). Chunks with no delay between them go out in one write, each event in its own HTTP chunk.
"""

import asyncio
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import uvloop

from bench.workload import MARK, PLAIN, End, read_shape

BACKLOG = 8192
LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ID = "chatcmpl-bench"
BASE = {"created": 1_750_000_000, "model": "bench"}
PROMPT_TOKENS = 60


def counts_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def json_reply(value: object) -> bytes:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def event(value: object) -> bytes:
    """One server-sent event in its own HTTP chunk."""
    data = b"data: " + (value if isinstance(value, bytes) else msgspec.json.encode(value)) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, id_: str = ID) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({"id": id_, **BASE, "object": "chat.completion.chunk", "choices": [choice]})


def last_chunks(usage: dict[str, int], id_: str = ID) -> bytes:
    """After the one with the reason: the counts, and the end of the stream."""
    counts = {"id": id_, **BASE, "object": "chat.completion.chunk", "choices": [], "usage": usage}
    return event(counts) + event(b"[DONE]") + LAST_CHUNK


def whole_reply(text: str, usage: dict[str, int], id_: str = ID) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return json_reply({"id": id_, **BASE, "object": "chat.completion", "choices": [choice], "usage": usage})


HELD_BACK = f"The last{MARK.decode()} is held back."
PLAIN_REPLY = whole_reply(HELD_BACK, counts_of(PROMPT_TOKENS, 8))
GET_REPLY = json_reply({"object": "list", "data": [{"id": "bench", "object": "model", "created": 1, "owned_by": "x"}]})
BEGIN = STREAM_HEAD + chunk({"role": "assistant", "content": ""})
CONTENT = chunk({"content": MARK.decode()})


@functools.cache
def ending(chunks: int) -> bytes:
    return chunk({}, "stop") + last_chunks(counts_of(PROMPT_TOKENS, chunks))


@functools.cache
def burst(chunks: int) -> bytes:
    return BEGIN + CONTENT * chunks + ending(chunks)


@functools.cache
def spaced(chunks: int) -> Sequence[bytes]:
    return [BEGIN + CONTENT, *[CONTENT] * (chunks - 2), CONTENT + ending(chunks)]


class Spaced:
    """A stream with pieces on a fixed schedule: a late one does not delay the next. `sent` counts them."""

    def __init__(self, transport: asyncio.Transport, pieces: Sequence[bytes], gap_ms: int) -> None:
        self.sent = 0
        self._transport = transport
        self._pieces = pieces
        self._gap_s = gap_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._next_s = self._loop.time()
        self._step()

    def _step(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._pieces[self.sent])
        self.sent += 1
        if self.sent < len(self._pieces):
            self._next_s += self._gap_s
            self._loop.call_at(self._next_s, self._step)


class Upstream(asyncio.Protocol):
    """One keep-alive connection. Each request is read in full before its reply."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it
        self._body = bytearray()
        self._missing_bytes: int | None = None  # of the body; None: the head is incomplete or the body is chunked

    def data_received(self, data: bytes) -> None:
        self._body += data
        if self._missing_bytes is not None:
            self._missing_bytes -= len(data)
            if self._missing_bytes <= 0:
                self._answer()
            return
        head_end = self._body.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._body[:head_end]).lower()
        _, found, rest = head.partition(b"content-length:")
        if found:
            self._missing_bytes = head_end + 4 + int(rest.partition(b"\r\n")[0]) - len(self._body)
            is_whole = self._missing_bytes <= 0
        else:
            is_whole = b"chunked" not in head or self._body.endswith(LAST_CHUNK)
        if is_whole:
            self._answer()

    def _answer(self) -> None:
        body, self._body, self._missing_bytes = self._body, bytearray(), None
        self.reply(body)

    def reply(self, body: bytearray) -> None:
        """To a request, with its head."""
        if body.startswith(b"GET"):
            self._transport.write(GET_REPLY)
            return
        shape = read_shape(body)
        if shape == PLAIN:
            self._transport.write(PLAIN_REPLY)
        elif shape.end == End.SILENT:
            self._transport.write(BEGIN + CONTENT)
        elif shape.gap_ms and shape.chunks > 1:
            Spaced(self._transport, spaced(shape.chunks), shape.gap_ms)
        else:
            self._transport.write(burst(shape.chunks))


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
