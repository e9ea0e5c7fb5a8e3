"""The script of faults: what an upstream does, and what a client must therefore see, in both modes.

A record is data. Its reply comes from the wire (faults_wire.py), from what is said (faults_said.py) or from time
(faults_timed.py); its class decides how long the service waits (leaks.py). Replies that are odd but sound stand here
as well: they must be served whole.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tests.loopback import USAGE, Event, Pause, Reply, Request, Sse, Step, chunk, http_head, said, sse_event

Said = dict[str, Any] | bytes

SECRET = "upstream-secret-74"
TEXT = "All that there was to say."
HALF = "half a word"
ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
COUNTS = chunk(choices=[], usage=USAGE)
BEGUN = (ROLE, said("half "), said("a word"))
WHOLE_EVENTS = (ROLE, said(TEXT[:9]), said(TEXT[9:]), STOP, COUNTS)
SSE_HEAD = http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
OPEN_JSON = http_head(200, {"content-type": "application/json", "connection": "close"})
SSE_BARE_HEAD = http_head(200, {"content-type": "text/event-stream", "connection": "close"})

PATIENT = "forte"  # waits for long
HURRIED = "mezzo"  # waits HURRY_S for a connection, a first token and a next one
BOUNDED = "fortissimo"  # waits HURRY_S between tokens and TOTAL_S in all, for BOUNDED_TOKENS at most
HURRY_S = 0.3
TOTAL_S = 2.0
BOUNDED_TOKENS = 16
WITHIN_S = 10.0  # for what should take no time, on a busy machine


class Told(msgspec.Struct, frozen=True):
    """What a client sees: a status; with a 200 what was said (None: something), and whether it broke off."""

    status: int
    text: str | None = None
    is_broken: bool = False
    retry_after_s: int | None = None


FAILED = Told(502)
REFUSED = Told(400)
BUSY = Told(429, retry_after_s=2)
WHOLE = Told(200, TEXT)
BROKEN = Told(200, HALF, is_broken=True)


class Fault(msgspec.Struct, frozen=True):
    """What the upstream does, and what follows."""

    reply: Reply
    stream: Told = FAILED
    whole: Told = FAILED
    class_id: str = PATIENT
    max_tokens: int | None = None
    within_s: float = WITHIN_S


Faults = Mapping[str, Fault]


class ByMode(msgspec.Struct, frozen=True):
    """One reply to who asked for a stream, another to who did not."""

    stream: Reply
    whole: Reply

    def steps(self, request: Request) -> Iterable[Step]:
        return (self.stream if request.json.get("stream") else self.whole).steps(request)


class Endless(msgspec.Struct, frozen=True):
    """A beginning, then the same for ever."""

    begin: Sequence[Step]
    again: Sequence[Step]

    def steps(self, _request: Request) -> Iterator[Step]:
        yield from self.begin
        while True:
            yield from self.again


class Wait(Pause):
    """A pause that ends by itself, after longer than anyone waits unless it says otherwise."""

    def __init__(self, time_s: float = 60.0) -> None:
        super().__init__()
        self._time_s = time_s

    async def hold(self) -> None:
        await asyncio.sleep(self._time_s)


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def body_of(*events: Said) -> bytes:
    """Events as the body of a stream, without HTTP chunks around them."""
    return b"".join(sse_event(event) if isinstance(event, dict) else event for event in events)


def opened(*events: Said) -> list[bytes]:
    """A stream that has begun: its head, and an HTTP chunk for each event."""
    return [SSE_HEAD, *(framed(body_of(event)) for event in events)]


def unended(*events: Event) -> Sse:
    """A stream whose last event is a step that ends it, without a [DONE]."""
    return Sse(events, done=False)
