"""The upstream of the benchmark: it answers as a request's tag says, and records every token that it made.

It runs inside the benchmark's own process, which no fault touches, so its record is complete. It counts prompts with
o200k, four tokens more for each message, and sends one token in each chunk. A request whose connection is closed stops.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from bench.money.reckon import Supplied
from bench.money.script import ScriptedRequest
from bench.upstream import GET_REPLY, LAST_CHUNK, STREAM_HEAD, event, json_reply
from cadenza.core.tokens import Tokenizer

WORD = " la"
CREATED = 1_750_000_000
MODEL = "bench"


class RecordingUpstream:
    """`async with RecordingUpstream().running() as port`."""

    def __init__(self) -> None:
        self.served = list[Supplied]()
        self._ids = itertools.count(1)
        self._tokenizer = Tokenizer()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):
                    writer.write(GET_REPLY)
                    continue
                body = await read_body(reader, head)
                await self._answer(msgspec.json.decode(body), reader, writer)
        writer.close()

    async def _answer(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        texts = [text_of(message) for message in body["messages"]]
        ask, record = ScriptedRequest.read(texts[-1]), self._record(texts)
        allowed = body.get("max_tokens") or body.get("max_completion_tokens") or ask.tokens
        is_stream, tokens = bool(body.get("stream")), min(ask.tokens, allowed)
        if is_stream:
            writer.write(STREAM_HEAD + event(chunk(record.id, {"role": "assistant", "content": ""})))
        for _ in range(tokens):
            await asyncio.sleep(ask.gap_ms / 1000)
            if reader.at_eof() or writer.is_closing():
                raise ConnectionResetError
            record.sent_tokens += 1
            if is_stream:
                writer.write(event(chunk(record.id, {"content": WORD})))
                await writer.drain()
        writer.write(ending(record) if is_stream else plain(record))
        await writer.drain()

    def _record(self, texts: Sequence[str]) -> Supplied:
        prompt_tokens = sum(self._tokenizer.count(text) + 4 for text in texts)
        record = Supplied(ScriptedRequest.read(texts[-1]).number, f"chatcmpl-bench{next(self._ids):08d}", prompt_tokens)
        self.served.append(record)
        return record


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    _, has_length, rest = head.partition(b"content-length:")
    if has_length:
        return await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def chunk(id_: str, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": id_, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL, "choices": [choice]}


def ending(record: Supplied) -> bytes:
    counts = chunk(record.id, {}) | {"choices": [], "usage": usage(record)}
    return event(chunk(record.id, {}, "stop")) + event(counts) + event(b"[DONE]") + LAST_CHUNK


def plain(record: Supplied) -> bytes:
    message = {"role": "assistant", "content": WORD * record.sent_tokens}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    fields = {"id": record.id, "object": "chat.completion", "created": CREATED, "model": MODEL}
    return json_reply(fields | {"choices": [choice], "usage": usage(record)})


def usage(record: Supplied) -> dict[str, int]:
    prompt, completion = record.prompt_tokens, record.sent_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
