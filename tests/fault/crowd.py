"""An upstream for crowds, in a process of its own: it carries thousands of requests at once, and it can be killed.

It speaks HTTP/1.1 by hand and no more of it than the service sends. Beside the chats it answers `GET /counts`, and
`GET /release` lets go on what it holds. A last message of the assistant is gone on with; FAILING is answered 500.
"""

import asyncio
import collections
import contextlib
import http.client
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, Self, cast

import msgspec
import uvloop

from tests.fault.load import allow_many_files
from tests.fault.replies import counts
from tests.loopback import http_head, sse_event
from tests.service import environment

ROOT = Path(__file__).parents[2]
START_S = 30.0
ASK_S = 10.0
WORDS = (
    " time",
    " and",
    " tide",
    " wait",
    " for",
    " no",
    " one",
    " but",
    " all",
    " of",
    " them",
    " end",
)  # a token each
FAILING = "Fail."
USAGE = counts(19, len(WORDS), 4)


class Manner(msgspec.Struct, frozen=True):
    """How it answers: after how long, how many at once, and how fast the words of a stream come."""

    reply_s: float = 0.0
    spread: float = 0.0  # a reply takes longer or shorter by up to this part
    capacity: int = 1_000_000
    beyond: Literal["refuses", "queues"] = "refuses"
    word_s: float = 0.0
    holds_after: int | None = None  # words of a stream, until it is released


class Counts(msgspec.Struct):
    """What it has seen."""

    in_flight: int = 0
    served: int = 0
    refused: int = 0
    holding: int = 0


class Crowd:
    """`with Crowd(Manner()) as crowd` is ready, until the block ends or it is killed."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self.port = 0
        self.base_url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.fault.crowd", msgspec.json.encode(self._manner).decode()]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment(), text=True)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        assert self._process.stdout
        self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(START_S)

    def counts(self) -> Counts:
        return msgspec.json.decode(self._get("/counts"), type=Counts)

    def release(self) -> None:
        self._get("/release")

    def _get(self, path: str) -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_S)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()


class Place:
    """What is shared by all connections: the places, and the release."""

    def __init__(self, manner: Manner) -> None:
        self.manner = manner
        self.counts = Counts()
        self.released = asyncio.Event()
        self.dice = random.Random(1)
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    async def enter(self) -> bool:
        if self.counts.in_flight >= self.manner.capacity:
            if self.manner.beyond == "refuses":
                self.counts.refused += 1
                return False
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        self.counts.in_flight += 1
        return True

    def leave(self) -> None:
        self.counts.in_flight -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break


class Connection(asyncio.Protocol):
    """One connection of the service, one request at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._data = b""
        self._serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._serving:
            self._serving.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length:")
        if end and len(body) >= int(length.split(b"\r\n")[0] or 0):
            self._data = b""
            if head.startswith(b"GET"):
                self._tell(head)
            else:
                self._serving = asyncio.create_task(self._serve(json.loads(body)))

    def _tell(self, head: bytes) -> None:
        if head.startswith(b"GET /release "):
            self._place.released.set()
            self._place.released.clear()  # those that come later are held again
        self._whole(200, msgspec.to_builtins(self._place.counts))

    async def _serve(self, asked: dict[str, Any]) -> None:
        place = self._place
        if not await place.enter():
            return self._whole(429, {"error": {"message": "too many at once"}})
        try:
            await asyncio.sleep(place.manner.reply_s * (1 + place.dice.uniform(-1, 1) * place.manner.spread))
            if asked["messages"][-1]["content"] == FAILING:
                return self._whole(500, {"error": {"message": "as it was asked"}})
            if asked.get("stream"):
                await self._stream(asked)
            else:
                message = {"role": "assistant", "content": "".join(WORDS)}
                self._whole(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE})
            place.counts.served += 1
        finally:
            place.leave()

    async def _stream(self, asked: dict[str, Any]) -> None:
        manner, begun = self._place.manner, words_begun(asked)
        self._transport.write(http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        for number, word in enumerate(WORDS[begun:], start=begun):
            if number == manner.holds_after:
                await self._hold()
            self._event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
            if manner.word_s:
                await asyncio.sleep(manner.word_s)
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": counts(19 + begun, len(WORDS) - begun, 4)})
        self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def _hold(self) -> None:
        self._place.counts.holding += 1
        try:
            await self._place.released.wait()
        finally:
            self._place.counts.holding -= 1

    def _event(self, value: dict[str, Any]) -> None:
        data = sse_event(value)
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _whole(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        self._transport.write(http_head(status, headers) + body)


def words_begun(asked: dict[str, Any]) -> int:
    """How many words were said before, by another."""
    last = asked["messages"][-1]
    said = last["content"] if last["role"] == "assistant" else ""
    return next(count for count in range(len(WORDS) + 1) if "".join(WORDS[:count]) == said)


async def main(manner: Manner) -> None:
    allow_many_files()
    place = Place(manner)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(place), "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Manner)))
