"""What the loopback upstream can answer: each reply is a sequence of steps that the server takes one by one.

Bytes are written as they are; the other steps pause, close or reset the connection.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

import msgspec

from tests.loopback.chunks import (
    ROLE,
    SSE_HEAD,
    STOP,
    chunk,
    completion,
    framed,
    http_head,
    said,
    sse_event,
    usage_chunk,
)

WAIT_S = 60.0


class Request(msgspec.Struct, frozen=True):
    """One request as received. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Pause:
    """A point where one reply waits until the test releases it."""

    def __init__(self) -> None:
        self._released: Future[None] = Future()
        self._reached = threading.Event()

    def release(self) -> None:
        with contextlib.suppress(InvalidStateError):
            self._released.set_result(None)

    def wait_until_reached(self, timeout_s: float = WAIT_S) -> None:
        assert self._reached.wait(timeout_s), "the upstream never reached the pause"

    async def hold(self) -> None:
        self._reached.set()
        await asyncio.wrap_future(self._released)


class Wait(Pause):
    """A pause that ends by itself; without a time it lasts longer than any client waits."""

    def __init__(self, time_s: float = 600.0) -> None:
        super().__init__()
        self._time_s = time_s

    async def hold(self) -> None:
        await asyncio.sleep(self._time_s)


class Reset(msgspec.Struct, frozen=True):
    """The connection ends with a TCP reset."""


class Close(msgspec.Struct, frozen=True):
    """The connection is closed cleanly, even in the middle of a reply."""


Step = bytes | Pause | Reset | Close
Event = dict[str, Any] | Step


class Reply(Protocol):
    """What the upstream does with a request. The first step is the HTTP head, the rest is the body."""

    def steps(self, request: Request, /) -> Iterable[Step]: ...


class Status(msgspec.Struct, frozen=True):
    """Any status with any body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}

    def steps(self, _request: Request) -> Iterator[Step]:
        headers = {"content-type": "application/json", "content-length": str(len(self.body)), **self.headers}
        yield http_head(self.status, headers)
        yield self.body


class Json(msgspec.Struct, frozen=True):
    """A 200 with one JSON document."""

    value: Any

    def steps(self, request: Request) -> Iterator[Step]:
        return Status(200, json.dumps(self.value).encode()).steps(request)


class Sse(msgspec.Struct, frozen=True):
    """An event stream: dicts become events, bytes are written as they are.

    `piece_bytes` splits the body into HTTP chunks of that size.
    """

    events: Iterable[Event]
    done: bool = True
    line_end: bytes = b"\n"
    piece_bytes: int | None = None

    def steps(self, _request: Request) -> Iterator[Step]:
        yield SSE_HEAD
        for event in self.events:
            if isinstance(event, Pause | Reset | Close):
                yield event
            else:
                yield from self._framed(sse_event(event, self.line_end) if isinstance(event, dict) else event)
        if self.done:
            yield from self._framed(b"data: [DONE]" + self.line_end * 2)
        yield b"0\r\n\r\n"

    def _framed(self, data: bytes) -> Iterator[bytes]:
        size = self.piece_bytes or len(data)
        for start in range(0, len(data), size):
            yield framed(data[start : start + size])


class Good(msgspec.Struct, frozen=True):
    """A correct reply of an OpenAI-compatible upstream, streamed or plain as requested."""

    text: str = "Hello there, this is the upstream."
    finish_reason: str = "stop"

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json
        if not asked.get("stream"):
            return Json(completion(self.text, self.finish_reason)).steps(request)
        words = self.text.split(" ")
        pieces = [word + " " for word in words[:-1]] + words[-1:]
        events = [ROLE, *map(said, pieces), chunk(finish=self.finish_reason)]
        if (asked.get("stream_options") or {}).get("include_usage"):
            events.append(usage_chunk())
        return Sse(events).steps(request)


class Raw(msgspec.Struct, frozen=True):
    """Steps exactly as given."""

    given: Sequence[Step]

    def steps(self, _request: Request) -> Iterable[Step]:
        return self.given


class Cut(msgspec.Struct, frozen=True):
    """Another reply whose body ends after `body_bytes` bytes."""

    reply: Reply
    body_bytes: int
    end: Reset | Close = Close()

    def steps(self, request: Request) -> Iterator[Step]:
        head, *body = self.reply.steps(request)
        yield head
        yield b"".join(step for step in body if isinstance(step, bytes))[: self.body_bytes]
        yield self.end


class Dribble(msgspec.Struct, frozen=True):
    """Another reply, head and body, written one byte at a time."""

    reply: Reply

    def steps(self, request: Request) -> Iterator[Step]:
        for step in self.reply.steps(request):
            if isinstance(step, bytes):
                yield from (step[place : place + 1] for place in range(len(step)))
            else:
                yield step


class ByMode(msgspec.Struct, frozen=True):
    """One reply to a streaming request, another to a plain one."""

    stream: Reply
    plain: Reply

    def steps(self, request: Request) -> Iterable[Step]:
        return (self.stream if request.json.get("stream") else self.plain).steps(request)


class Endless(msgspec.Struct, frozen=True):
    """Some steps once, then others for ever."""

    begin: Sequence[Step]
    again: Sequence[Step]

    def steps(self, _request: Request) -> Iterator[Step]:
        yield from self.begin
        while True:
            yield from self.again


class Numbered(msgspec.Struct, frozen=True):
    """A reply for each request number, so that requests may arrive in any order."""

    replies: Mapping[int, Reply]

    def steps(self, request: Request) -> Iterable[Step]:
        return self.replies[request_number(request)].steps(request)


class Whole(msgspec.Struct, frozen=True):
    """A complete reply of these words, streamed or plain as requested, with a usage or without one.

    `pause` comes before the last word of a stream, and before all of a plain reply.
    """

    words: Sequence[str]
    usage: dict[str, Any] | None
    pause: Pause | None = None

    def steps(self, request: Request) -> Iterator[Step]:
        pauses: list[Event] = [self.pause] if self.pause else []
        if request.json.get("stream"):
            *first, last = map(said, self.words)
            counted = [usage_chunk(self.usage)] if self.usage else []
            yield from Sse([ROLE, *first, *pauses, last, STOP, *counted]).steps(request)
        else:
            if self.pause:
                yield self.pause
            value = completion("".join(self.words))
            del value["usage"]
            yield from Json(value | ({"usage": self.usage} if self.usage else {})).steps(request)


def request_number(request: Request) -> int:
    """The number that a ChatRequest puts first in its message."""
    return int(request.json["messages"][-1]["content"].split()[0])
