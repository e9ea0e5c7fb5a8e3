"""The upstream of a hosted service's mix: `python -m bench.real_upstream PORT`.

`GET /served` tells what it sent to each request of the mix. The first try of a request that is to fail gets a 500.
"""

import asyncio
import functools
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import uvloop

from bench.mix import NUMBER
from bench.upstream import (
    BACKLOG,
    HELD_BACK,
    STREAM_HEAD,
    Spaced,
    Upstream,
    chunk,
    counts_of,
    json_reply,
    last_chunks,
    whole_reply,
)
from bench.workload import MARK, End, Shape, read_shape

BYTES_PER_TOKEN = 4
PLAIN_TOKENS = 8
ID = "chatcmpl-0000000"
FAILURE = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
Delta = dict[str, Any]


class Supply(msgspec.Struct):
    """What was sent to a request. `is_whole`: with its usage."""

    number: int
    prompt_tokens: int
    sent_tokens: int
    is_whole: bool = True


class MixUpstream(Upstream):
    """One keep-alive connection."""

    def __init__(self, served: list[tuple[Supply, Spaced | None]], failed: set[int]) -> None:
        self._served = served
        self._failed = failed

    def reply(self, body: bytearray) -> None:
        if body.startswith(b"GET /served"):
            self._transport.write(json_reply([told(supply, stream) for supply, stream in self._served]))
        elif found := NUMBER.match(body, max(0, body.rfind(b"[real "))):
            self._serve(int(found[1]), read_shape(body), len(body) // BYTES_PER_TOKEN)
        else:
            super().reply(body)

    def _serve(self, number: int, shape: Shape, prompt_tokens: int) -> None:
        if shape.end == End.FAILED and number not in self._failed:
            self._failed.add(number)
            self._transport.write(FAILURE)
            return
        supply, id_ = Supply(number, prompt_tokens, shape.chunks or PLAIN_TOKENS), f"chatcmpl-{number:07d}"
        usage, stream = counts_of(prompt_tokens, supply.sent_tokens), None
        if shape.chunks:
            *chunks, last = [piece.replace(ID.encode(), id_.encode()) for piece in pieces(shape)]
            stream = Spaced(self._transport, [*chunks, last + last_chunks(usage, id_)], shape.gap_ms)
        else:
            self._transport.write(whole_reply(HELD_BACK, usage, id_))
        self._served.append((supply, stream))


def told(supply: Supply, stream: Spaced | None) -> Supply:
    if stream is None or stream.sent == supply.sent_tokens:
        return supply
    return msgspec.structs.replace(supply, sent_tokens=stream.sent, is_whole=False)


@functools.cache
def pieces(shape: Shape) -> Sequence[bytes]:
    """A stream without its usage: a MARK in each piece. The second half of CALLS are arguments."""
    mark, calls = MARK.decode(), shape.end == End.CALLS
    texts = shape.chunks // 2 if calls else shape.chunks
    deltas: list[list[Delta]] = [[{"content": mark if number % 10 else mark + "s"}] for number in range(texts)]
    deltas[0].insert(0, {"role": "assistant", "content": ""})  # LiteLLM ends a stream after 100 equal chunks
    for index, end in enumerate((texts + texts // 2, shape.chunks)) if calls else ():
        name = {"id": f"call_{index}", "type": "function"}
        deltas.append([call(index, '{"path":"', name, name="read_file"), call(index, mark)])
        deltas += [[call(index, mark)] for _ in range(end - len(deltas))]
        deltas[-1].append(call(index, '"}'))
    found = [b"".join(chunk(delta, id_=ID) for delta in one) for one in deltas]
    return [STREAM_HEAD + found[0], *found[1:-1], found[-1] + chunk({}, "tool_calls" if calls else "stop", ID)]


def call(index: int, arguments: str, fields: Delta | None = None, **name: str) -> Delta:
    return {"tool_calls": [{"index": index} | (fields or {}) | {"function": {**name, "arguments": arguments}}]}


async def serve(port: int) -> None:
    make = functools.partial(MixUpstream, [], set[int]())
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port, backlog=BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
